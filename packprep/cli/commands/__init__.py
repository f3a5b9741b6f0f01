"""One module for each command, with a click `command`."""
