"""What runs in the field: the server, the devices, and the files and messages by which they exchange updates."""
