"""What the model adapters cost: reading a stream beside the official client, making a body beside `json.dumps`.

Both sides of a ratio run in turns in this process, on the same bytes; what counts is the best of each side's rounds, so
that a busy machine disturbs both alike. No network: the streams were recorded before, and the bodies are not sent.
"""
