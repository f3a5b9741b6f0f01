"""One open file in; its rows out, one module per format."""
