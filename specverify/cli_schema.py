"""`specverify schema`: the JSON Schemas of what specverify reads and writes.

Only click is imported at load.
"""

import json
from typing import Any

import click

DIALECT = "https://json-schema.org/draft/2020-12/schema"


@click.command()
@click.argument("what", type=click.Choice(["config", "certificate"]))
def schema(what: str) -> None:
    """Print the JSON Schema of the configuration, or of certificates.

    config is about the table [tool.specverify] of a pyproject.toml, certificate about the files
    that `specverify certify --out DIR` writes.

    \b
    Examples:
      specverify schema config
      specverify schema certificate > certificate.schema.json
    """
    click.echo(schema_text(what), nl=False)


def schema_text(what: str) -> str:
    """The schema as it is published: indented JSON."""
    made: dict[str, Any]
    if what == "config":
        from specverify.certification.configuration import Configuration

        made = Configuration.model_json_schema()
    else:
        from specverify.certification.certificate import Certificate

        # As it is written: with the digest, and with every field.
        made = Certificate.model_json_schema(mode="serialization")
    return json.dumps({"$schema": DIALECT, **made}, indent=2) + "\n"
