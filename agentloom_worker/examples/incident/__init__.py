"""The incident example: why did checkout fail on the afternoon of 17 March?"""

from pathlib import Path

DIRECTORY = Path(__file__).parent
RELEASE = DIRECTORY / "release.yaml"
SCRIPT = DIRECTORY / "devmodel.yaml"
QUESTION = (
    "Checkout started failing on the afternoon of 2026-03-17. Find out what broke, which change caused it, "
    "how many orders failed and whether it is over. Use the log and the order data."
)
