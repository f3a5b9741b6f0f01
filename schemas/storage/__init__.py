"""Names of files and bytes in; whole files out, on a disk, in a store, or cached from one."""
