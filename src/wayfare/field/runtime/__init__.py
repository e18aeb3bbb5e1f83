"""The server and device processes, with the files and messages that they use to exchange updates."""
