"""Files of graphs: ids of vertices, checksums, and files that change while they are read."""

import subprocess
import sys
import zlib
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="pip install torch")

from thinwire import InvalidError  # noqa: E402

pytestmark = pytest.mark.needs("torch")

VERTICES = 60


def graph(columns=3):
    random = torch.Generator().manual_seed(0)
    edge_index = torch.randint(VERTICES, (2, 400), generator=random)
    return SimpleNamespace(edge_index=edge_index, x=torch.ones(VERTICES, columns))


def stored(path, columns=6):
    from thinwire.torch.graph import StoredGraph, save

    save(graph(columns), path)
    return StoredGraph(path)


def parquet(path, **columns):
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path)
    return path


@pytest.mark.needs("pyarrow")
def test_parquet_may_call_vertices_what_it_likes(tmp_path):
    from thinwire.torch.graph import StoredGraph, save
    from thinwire.torch.graph.parquet import read_parquet

    big = 1 << 60
    for names in (["b", "é", "a"], [5, big, -(1 << 63)]):
        src, dst = [names[0], names[1]], [names[1], names[2]]
        edges = parquet(tmp_path / "e.parquet", src=src, dst=dst)
        data = read_parquet(edges, relabel=True)
        assert data.vertex_ids == sorted(names) and data.num_nodes == 3
        called = [[data.vertex_ids[vertex] for vertex in row] for row in data.edge_index]
        assert called == [src, dst]
        save(data, tmp_path / "graph.tw")
        assert StoredGraph(tmp_path / "graph.tw").ids == sorted(names)
        rows = {"id": [names[2], names[0], names[1]], "y": [-100, None, 1]}
        nodes = parquet(tmp_path / "v.parquet", **rows)
        data = read_parquet(edges, vertices=nodes, ids="id", labels="y")
        assert data.vertex_ids == rows["id"] and data.y.tolist() == [-100, -1, 1]
        assert data.edge_index.tolist() == [[1, 2], [2, 0]]
        save(data, tmp_path / "graph.tw")
        assert StoredGraph(tmp_path / "graph.tw").y.tolist() == [-1, -1, 1]
        for wrong, message in (
            (names[:2], "dst is .* in row 1, expected one of the ids"),
            ([*names, names[0]], "id has .* twice, expected it once"),
            ([0.5], "id is double, expected integers or strings"),
        ):
            nodes = parquet(tmp_path / "v.parquet", id=wrong)
            with pytest.raises(InvalidError, match=message):
                read_parquet(edges, vertices=nodes, ids="id")
    with pytest.raises(InvalidError, match="relabel with vertices, expected ids"):
        read_parquet(edges, vertices=nodes, relabel=True)
    with pytest.raises(InvalidError, match="ids without a file of vertices"):
        read_parquet(edges, ids="id")


def test_a_file_keeps_ids_and_origins(tmp_path):
    from thinwire.torch.graph import StoredGraph, save

    data = graph()
    path = tmp_path / "graph.tw"
    names = [f"page {vertex}" for vertex in range(VERTICES)]
    for ids in (names, [vertex << 50 for vertex in range(-30, 30)], torch.arange(VERTICES)):
        save(data, path, bounds=[0, 20, VERTICES], ids=ids)
        file = StoredGraph(path)
        file.verify()
        assert file.ids == (ids if isinstance(ids, list) else ids.tolist())
        assert file.origins.tolist() == list(range(VERTICES))
    save(data, path)
    assert StoredGraph(path).ids is None and StoredGraph(path).origins is None
    for ids, message in (
        (names[1:], "59 ids, expected 60, one per vertex"),
        ([*names[1:], 5], "ids of several types, expected all int64 or all str"),
        ([1 << 63] * VERTICES, "ids of several types, expected all int64 or all str"),
        ("abc", 'ids is "abc", expected list or tuple'),
    ):
        with pytest.raises(InvalidError, match=message):
            save(data, path, ids=ids)


def damaged(path, change):
    """Changes the bytes of a file whose header gets a right checksum."""
    data = bytearray(path.read_bytes())
    change(data)
    data[12:16] = zlib.crc32(bytes(data[16:128])).to_bytes(4, "little")
    path.write_bytes(data)


def test_a_header_that_contradicts_itself_and_a_damaged_array_are_named(tmp_path):
    from thinwire.torch.graph import StoredGraph

    path = tmp_path / "graph.tw"
    stored(path).verify()
    damaged(path, lambda data: data.__setitem__(slice(40, 48), b"int8\0\0\0\0"))
    with pytest.raises(InvalidError, match="of features of 24 bytes, expected 10 for 6 int8"):
        StoredGraph(path)
    stored(path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(InvalidError, match=r"graph\.tw: checksum of "):
        StoredGraph(path).verify()


def test_rows_are_decoded_into_the_room_that_there_is():
    from thinwire._core import decode_rows

    encoded, out = torch.zeros(24, dtype=torch.uint8), torch.zeros(2, 8)
    decode_rows((encoded.data_ptr(), 24), 8, "int8", (out.data_ptr(), 2))
    with pytest.raises(InvalidError, match="24 bytes, expected 1 rows of 12 bytes"):
        decode_rows((encoded.data_ptr(), 24), 8, "int8", (out.data_ptr(), 1))


def test_a_file_that_is_written_to_while_it_is_read_is_named(tmp_path):
    path = tmp_path / "graph.tw"
    stored(path)
    loader = """
import os, sys
from thinwire._core import InvalidError
from thinwire.torch.graph import Loader, StoredGraph
path = sys.argv[1]
file = StoredGraph(path)
batches = iter(Loader(file, [5, 5], 1, threads=1))
next(batches)
with open(path, "r+b") as other:
    {change}
try:
    for _ in range(5):
        for batch in Loader(file, [5, 5], 1, threads=1):
            pass
except InvalidError as error:
    print(error)
"""
    for change, message in (
        ("other.seek(700); other.write(os.urandom(300)); os.utime(path, (0, 0))", "has written to"),
        ("os.truncate(path, 200)", "200 bytes, expected "),
    ):
        stored(path)
        program = [sys.executable, "-c", loader.replace("{change}", change), path]
        ended = subprocess.run(program, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, ended.stderr
        assert f"{path}: " in ended.stdout and message in ended.stdout, ended.stdout
    # Readers that do not compare end with the name of the file.
    stored(path, 4000)
    reader = """
import os, sys
from thinwire.torch.graph import StoredGraph
file = StoredGraph(sys.argv[1])
os.truncate(sys.argv[1], 0)
file.columns()
"""
    program = [sys.executable, "-c", reader, path]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=60)
    expected = f"error: {path}: the file became shorter while it was read\n"
    assert (ended.returncode, ended.stderr) == (2, expected)
