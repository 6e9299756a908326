"""The story: accept → step → steps/ → operations → commit → lease, dispatch."""
