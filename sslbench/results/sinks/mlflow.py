"""MLflow: one run per record, in the experiment of MLFLOW_EXPERIMENT_NAME at the server of MLFLOW_TRACKING_URI."""

import re
from pathlib import Path
from typing import Any

NEEDS = "mlflow"


def send(record: dict[str, Any], file: Path) -> None:
    """Write the metrics of a run, weights and protocol as its tags, and the whole record as its artifact."""
    import mlflow

    tags = {"record": record["id"], "weights": record["weights"]["name"], "protocol": record["protocol"]["name"]}
    found = mlflow.search_runs(filter_string=f"tags.record = '{record['id']}'", output_format="list")
    # MLflow refuses other characters, such as those of worst_group(site).top1.
    values = {re.sub(r"[^\w./ -]", "_", name): metric["value"] for name, metric in record["metrics"].items()}
    # Nested: a training that is evaluated may have a run open.
    with mlflow.start_run(run_id=found[0].info.run_id if found else None, run_name=file.stem, nested=True):
        mlflow.set_tags(tags)
        mlflow.log_metrics({name: value for name, value in values.items() if value is not None})
        mlflow.log_dict(record, "record.json")
