"""The slow, obvious account of where the user's words are: plain lists, written from the specification alone.

Seed 000, 5 and seed 004, 3.2 with RULINGS A5-A10. It is told each command when it is committed, and looks at what
nobody decides for it: which requests were frozen, which of them have begun to be answered, which runs have ended.
From these it says what became of every input. It shares no code with the program.
"""

from collections import Counter
from dataclasses import dataclass, field

QUEUE_MAX = 8
ENDED = ("succeeded", "failed", "cancelled", "timed_out", "budget_exhausted")


@dataclass
class Words:
    """One input. `chain` are its deliveries, oldest first: the run's number (None: it waits for one) and the state."""

    seq: int
    text: str
    kind: str
    chain: list[tuple[int | None, str]] = field(default_factory=list)
    withdrawn: bool = False

    @property
    def newest(self) -> tuple[int | None, str] | None:
        """Where it is now."""
        return self.chain[-1] if self.chain else None

    @property
    def state(self) -> str:
        """What a receipt says."""
        if self.newest is None:
            return "withdrawn" if self.withdrawn else "queued"
        return "pending_next_run" if self.newest[0] is None else self.newest[1]

    @property
    def run_no(self) -> int | None:
        """The run that has it now."""
        return self.newest[0] if self.newest else None


@dataclass
class Loop:
    """One loop of a run: what its prepare had before it, what its request claimed, whether that is answered."""

    had: list[int]
    frozen: bool = False
    claimed: list[int] = field(default_factory=list)
    answered: bool = False


@dataclass
class Running:
    """One run of the session."""

    run_no: int
    question: int
    state: str = "taking"  # then stopping, then ended
    loops: list[Loop] = field(default_factory=list)


@dataclass(frozen=True)
class LoopFact:
    """A loop as it is on disk."""

    loop_no: int
    frozen: bool
    answered: bool


@dataclass(frozen=True)
class RunFact:
    """A run as it is on disk, with its loops in order."""

    run_no: int
    question: int
    status: str
    loops: tuple[LoopFact, ...]


class Refused(Exception):
    """The command is refused with a code, and nothing is written."""


class Account:
    """A session that does `on_busy` with a question which meets a live run.

    A supplement is refused where `room` inputs wait for a model, with the live run or for the next one.
    """

    def __init__(self, on_busy: str, room: int) -> None:
        self.on_busy = on_busy
        self.room = room
        self.words: list[Words] = []
        self.runs: list[Running] = []
        self.queue: list[int] = []

    @property
    def live(self) -> Running | None:
        """The run that has not ended."""
        return self.runs[-1] if self.runs and self.runs[-1].state != "ended" else None

    # -- what users do ------------------------------------------------------------------------------

    def say(self, sending: str, text: str) -> Words:
        """A question, a supplement, or whichever fits."""
        live = self.live
        taking = live is not None and live.state == "taking"
        if sending == "supplement" or (sending == "send" and taking):
            return self._supplement(text)
        if live is None:
            words = self._add(text, "question")
            self._begin(words)
            return words
        if self.on_busy == "supplement" and taking:
            return self._supplement(text)
        if self.on_busy in ("reject", "supplement"):
            raise Refused("SESSION_BUSY" if taking else "RUN_STOPPING")
        if len(self.queue) >= QUEUE_MAX:
            raise Refused("SESSION_QUEUE_FULL")
        words = self._add(text, "question")
        if self.on_busy == "enqueue":
            # Behind what came before it; what interrupts stands before them all.
            self.queue.append(words.seq)
        else:
            self.queue.insert(0, words.seq)
            live.state = "stopping"
        return words

    def withdraw(self, seq: int) -> None:
        """Take a question back that waits."""
        words = self.words[seq - 1]
        if words.withdrawn:
            return
        if seq not in self.queue:
            raise Refused("INPUT_NOT_QUEUED")
        self.queue.remove(seq)
        words.withdrawn = True

    def stop(self) -> None:
        """Stop the live run."""
        if self.live is not None:
            self.live.state = "stopping"

    def _add(self, text: str, kind: str) -> Words:
        words = Words(len(self.words) + 1, text, kind)
        self.words.append(words)
        return words

    def _supplement(self, text: str) -> Words:
        live = self.live
        places: list[tuple[int | None, str]] = [(None, "pending")]
        places += [(live.run_no, "pending"), (live.run_no, "claimed")] if live is not None else []
        if sum(words.newest in places for words in self.words) >= self.room:
            raise Refused("SESSION_QUEUE_FULL")
        words = self._add(text, "supplement")
        words.chain.append((live.run_no if live is not None and live.state == "taking" else None, "pending"))
        return words

    def _begin(self, question: Words) -> None:
        """A run takes its question and everything that waits for a run."""
        run = Running(len(self.runs) + 1, question.seq)
        self.runs.append(run)
        question.chain.append((run.run_no, "pending"))
        for words in self.words:
            if words.newest == (None, "pending"):
                words.chain[-1] = (run.run_no, "pending")

    # -- what the runtime did meanwhile -------------------------------------------------------------

    def look(self, facts: list[RunFact]) -> list[tuple[int, int]]:
        """Take in what is on disk; the requests that are new, as run and loop numbers."""
        new: list[tuple[int, int]] = []
        place = 0
        while place < len(self.runs):
            run = self.runs[place]
            assert place < len(facts), f"run {run.run_no}, which answers input {run.question}, was never made"
            fact = facts[place]
            assert (fact.run_no, fact.question) == (run.run_no, run.question), f"{fact} is not {run}"
            for loop in fact.loops:
                new += self._look_at(run, loop)
            if fact.status in ENDED:
                self._end(run)
            elif fact.status == "stopping":
                run.state = "stopping"
            else:
                assert run.state == "taking", f"{fact} has to stop"
            place += 1
        assert len(facts) == len(self.runs), f"runs that nobody asked for: {facts[len(self.runs) :]}"
        return new

    def _look_at(self, run: Running, fact: LoopFact) -> list[tuple[int, int]]:
        new = []
        if fact.loop_no > len(run.loops):
            assert run.state != "ended", "an ended run goes on"
            # A prepare has everything that came before it: it is asserted by its commit.
            run.loops.append(Loop([words.seq for words in self.words if words.run_no == run.run_no]))
        loop = run.loops[fact.loop_no - 1]
        if fact.frozen and not loop.frozen:
            loop.frozen = True
            new.append((run.run_no, fact.loop_no))
            for words in self._all(loop.had):
                if words.newest == (run.run_no, "pending"):
                    words.chain[-1] = (run.run_no, "claimed")
                    loop.claimed.append(words.seq)
        if fact.answered and not loop.answered:
            assert loop.frozen and run.state != "ended", f"an output of {run} that is none"
            loop.answered = True
            for words in self._all(loop.claimed):
                assert words.newest == (run.run_no, "claimed")
                words.chain[-1] = (run.run_no, "delivered")
        return new

    def _end(self, run: Running) -> None:
        """Supplements that no output delivered wait for the next run, which is that of the first queued question."""
        if run.state == "ended":
            return
        run.state = "ended"
        for words in self.words:
            if words.kind == "supplement" and words.newest in ((run.run_no, "pending"), (run.run_no, "claimed")):
                words.chain[-1] = (run.run_no, "carried")
                words.chain.append((None, "pending"))
        if self.queue:
            self._begin(self.words[self.queue.pop(0) - 1])

    def _all(self, seqs: list[int]) -> list[Words]:
        return [self.words[seq - 1] for seq in seqs]

    # -- what a request must show -------------------------------------------------------------------

    def check_request(self, run_no: int, loop_no: int, users: list[str]) -> None:
        """Its run's inputs verbatim, in order and once; those of earlier runs once, before them; nothing else."""
        own = [words.text for words in self._all(self.runs[run_no - 1].loops[loop_no - 1].had)]
        assert own, "a request without its question"
        assert users[len(users) - len(own) :] == own, (own, users)
        earlier = [
            words.text
            for words in self.words
            if words.text not in own and any(no is not None and no < run_no for no, _ in words.chain)
        ]
        assert Counter(users) == Counter(own + earlier), (own, earlier, users)
