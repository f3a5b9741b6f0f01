"""Bytes of shards before they are written: their columns, and the frames that Arrow puts around."""

import math

import pyarrow as pa

from packprep.output.shard_writer import BATCH_TOKENS, ShardLayout, column_bytes


def output_bytes(
    layout: ShardLayout, shard_size: int, *, tokens: int, segments: int, packs: int, rows: int = 0
) -> int:
    """Bytes of the shards of a window with these packs, as a build reports them.

    rows: of trees. Token files of an index are not counted, as in the report. Off by the padding of
    buffers, some bytes a record batch.
    """
    if not packs:
        return 0
    content = column_bytes(layout.file_columns, tokens, segments, packs, rows)
    # A shard of an index ends where one with tokens would.
    with_tokens = column_bytes(layout.columns, tokens, segments, packs, rows)
    shards = math.ceil(with_tokens / shard_size)
    batches = max(shards, math.ceil(tokens / BATCH_TOKENS))
    of_shard, of_batch = _frames(layout.schema)
    return int(content + shards * of_shard + batches * of_batch)


def _frames(schema: pa.Schema) -> tuple[int, int]:
    """Bytes of a stream without record batches, and those that an empty one adds."""
    sizes = []
    for batches in range(2):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            for _ in range(batches):
                writer.write_batch(pa.RecordBatch.from_pylist([], schema))
        sizes.append(sink.getvalue().size)
    return sizes[0], sizes[1] - sizes[0]
