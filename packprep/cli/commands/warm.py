"""`packprep warm`: compile all kernels, for a container image."""

import click

_MODULES = (
    "packprep.windows.labels",
    "packprep.windows.interleave",
    "packprep.windows.mix_draw",
    "packprep.chat.rendering.plain_kernels",
)
"""Modules with kernels that are not among those of packing."""


@click.command("warm", short_help="Compile all kernels now, for a container image.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing.")
def command(quiet: bool) -> None:
    """Compile all kernels now, so that no later command waits for it.

    Compiled kernels are kept beside the installed package, or where that is read-only in
    ~/.cache/packprep. If NUMBA_CACHE_DIR is set, they are kept in that directory. They serve one
    type of processor, and any user who can read them; the image may then be read-only.

    \b
    Example:
      RUN pip install packprep && packprep warm --quiet
    """
    from packprep.packing.kernels.compiled import compiling
    from packprep.packing.kernels.disk_cache import can_keep
    from packprep.packing.warm import all_variants
    from packprep.support.errors import ConfigError
    from packprep.support.progress import open_progress

    compiled: list[str] = []
    with open_progress("loading libraries", quiet=quiet) as progress, compiling(compiled.append):
        variants = all_variants(_MODULES)
        for number, (kernel, variant) in enumerate(variants, 1):
            kernel.load(variant)
            progress.advance("compile", number, len(variants), "kernels")
    if compiled and not can_keep():
        raise ConfigError("no folder to keep kernels can be written; set NUMBA_CACHE_DIR")
    if not quiet:
        click.echo(f"{len(variants)} kernels are ready")
