"""cs_input_analyzer: measures a model's input pipeline, and computes how many tasks it needs."""

import click

from csrun.cli import frame

NAME = "cs_input_analyzer"


@click.command(NAME, context_settings=frame.SETTINGS)
@frame.version
@click.option(
    "--available-nodes",
    type=frame.WholeNumber(min=1),
    metavar="N",
    help="Maximum nodes of a job; default: all nodes of the site.",
)
@click.option(
    "--target",
    type=float,
    metavar="SAMPLES_PER_SEC",
    help="Target input rate; default: that of this machine's wafer, or the compile's estimate.",
)
@click.option("--verify", is_flag=True, help="Run the recommended layout, and compare the rates.")
@click.option("--json", "as_json", is_flag=True, help="Print only the analysis, as JSON.")
@click.option(
    "--output",
    metavar="DIR",
    default=".",
    help="Folder for input_analysis.json and input_analysis.html, created if missing;"
    " default: the current one.",
)
@click.option("--mount-dirs", metavar="A,B", default="", help="Folders that CMD needs to see.")
@frame.the_site
@frame.the_command
def cs_input_analyzer(
    command: tuple[str, ...],
    available_nodes: int | None,
    target: float | None,
    verify: bool,
    as_json: bool,
    output: str,
    mount_dirs: str,
    site: str | None,
) -> int:
    """Measure the input pipeline of CMD, a training with --compile_only or --validate_only.

    CMD runs on a CPU node, where only its input pipeline is measured: each stage, with one task and
    with several. A scaling law fitted to the rates gives the smallest job that reaches the target.
    """
    from pathlib import Path

    from csrun.cli.input_analysis import AnalysisRequest, analyze
    from csrun.site import load, resolve

    request = AnalysisRequest(
        command=command,
        nodes=available_nodes,
        target=target,
        verify=verify,
        as_json=as_json,
        output=Path(output),
        mount_dirs=frame.split(mount_dirs),
        site=resolve(site),
        site_option=site,
    )
    return analyze(request, load(site))


def main() -> None:
    frame.main(cs_input_analyzer)


if __name__ == "__main__":
    main()
