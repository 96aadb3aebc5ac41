"""Labels in: sent, taken back, known to be true, or told by a tool's hook."""

import json
from io import BytesIO
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from labelquorum.errors import LabelError, LimitError
from labelquorum.ingest.bounded import MOST_ROWS, read_bounded_parquet
from labelquorum.ingest.events import LabelSpace, LabelTable
from labelquorum.ingest.formats import iter_csv, iter_jsonl
from labelquorum.ingest.names import check_names, fault_of_name
from labelquorum.ingest.records import read_records
from labelquorum.record.inlet import Sent
from labelquorum.serve.server.access import Guarded
from labelquorum.serve.server.bodies import SMALL, parse_json
from labelquorum.serve.server.ids import spellings
from labelquorum.serve.server.refusals import Refusal, error_responses
from labelquorum.serve.server.shapes import Gone, GoldAnswer, HookAnswer, ReceiptShape, labels_body

__all__ = ["router"]

router = APIRouter(route_class=Guarded)
_STREAM = "/v1/streams/{stream}"
_JSON, _NDJSON, _CSV = "application/json", "application/x-ndjson", "text/csv"
_PARQUET = "application/vnd.apache.parquet"
_KINDS = (_JSON, _NDJSON, _CSV, _PARQUET)
