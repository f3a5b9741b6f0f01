"""Arrays and ints in, arrays out: the compiled loops of packing."""
