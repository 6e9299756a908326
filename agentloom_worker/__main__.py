"""`python -m agentloom_worker` is the command `agentloom`."""

from agentloom_worker.cli.app import main

if __name__ == "__main__":
    main()
