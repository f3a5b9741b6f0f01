"""File names and bytes in; whole files out: on disk, in a store, or in a cache of one."""
