"""`packprep warm`: compile all kernels, for a container image."""

import click


@click.command("warm", short_help="Compile all kernels now, for a container image.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing.")
def command(quiet: bool) -> None:
    """Compile all kernels now, so that no later command waits for it.

    Compiled kernels are kept beside the installed package, or where that is read-only in
    ~/.cache/numba, or in the directory that NUMBA_CACHE_DIR names. They serve one type of
    processor. Run this as the user who will run packprep, who must be able to write there.

    \b
    Example:
      RUN pip install packprep && packprep warm --quiet
    """
    from packprep.packing.warm import all_variants
    from packprep.support.progress import open_progress

    with open_progress("loading libraries", quiet=quiet) as progress:
        variants = all_variants(["packprep.windows.labels", "packprep.windows.mix_draw"])
        for number, (kernel, variant) in enumerate(variants, 1):
            kernel.load(variant)
            progress.advance("compile", number, len(variants), "kernels")
    if not quiet:
        click.echo(f"{len(variants)} kernels are ready")
