r"""Build and serve an index.

python -m turncredit.retrieval build --corpus FILE --encoder NAME --index STRING --out DIR
python -m turncredit.retrieval serve DIR --encoder NAME

NAME is `all_minilm` (the pip package) or FAMILY:FOLDER with the family e5, bge or minilm; STRING is
one of FAISS's factory strings, such as Flat, HNSW32, IVF4096,Flat or IVF4096,PQ64.  For example:

python -m turncredit.retrieval build --corpus wiki-18.jsonl --encoder e5:models/e5-base-v2 \
    --index Flat --out indexes/wiki-18 --device cuda --precision float16 --batch-size 512
python -m turncredit.retrieval serve indexes/wiki-18 --encoder e5:models/e5-base-v2
curl http://127.0.0.1:8000/retrieve -d '{"queries": ["who wrote it?"], "topk": 3}'

The exit status is 0 if all went well, 1 if the rows of a corpus are bad or there are none, and 2 if
an option or a file cannot be used.
"""

import argparse
import sys
from pathlib import Path

from turncredit.retrieval import Retriever
from turncredit.retrieval.build import build_index
from turncredit.retrieval.encoders import TransformerEncoder, encoder_from_name
from turncredit.retrieval.passages import BadRow
from turncredit.retrieval.server import check_port, require_free, serve
from turncredit.retrieval.stored import load_index


def main(arguments: list[str] | None = None) -> int:
    """Run a command; what is wrong with its arguments or files is one sentence on stderr.

    0 = done, 1 = rows are bad or there are none, 2 = an option or a file cannot be used.
    """
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
    except (ValueError, OSError, MemoryError, ImportError, RuntimeError) as error:
        print(f"{options.name}: {error}", file=sys.stderr)
        return 1 if type(error) is BadRow else 2
    except KeyboardInterrupt:
        return 130
    return 0


def _build(options: argparse.Namespace) -> None:
    manifest = build_index(
        options.corpus,
        _encoder(options),
        options.index,
        options.out,
        shard_size=options.shard_size,
        keep_vectors=options.keep_vectors,
        show_progress=True,
    )
    print(f"{options.out}: {manifest['count']} passages, {manifest['index_bytes']} bytes")


def _serve(options: argparse.Namespace) -> None:
    require_free(options.host, options.port)  # before a large index is read
    encoder = _encoder(options)
    passages, index, manifest = load_index(
        options.folder,
        encoder,
        corpus=options.corpus,
        device="cuda" if options.faiss_gpu else "cpu",
        parameters=options.parameters,
    )
    address = f"http://{options.host}:{options.port}/retrieve"
    print(f"{address}: {manifest['count']} passages", flush=True)  # before it waits for requests
    serve(
        Retriever(passages, encoder, index),
        host=options.host,
        port=options.port,
        topk=options.topk,
        manifest=manifest,
    )


def _encoder(options: argparse.Namespace) -> TransformerEncoder:
    return encoder_from_name(
        options.encoder,
        batch_size=options.batch_size,
        device=options.device,
        precision=options.precision,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m turncredit.retrieval",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, dest="name")
    shown = {"formatter_class": argparse.ArgumentDefaultsHelpFormatter}
    build = commands.add_parser(
        "build", help="encode and index a corpus; goes on if killed", **shown
    )
    build.set_defaults(command=_build)
    build.add_argument("--corpus", type=Path, required=True, help='JSON lines {"id", "contents"}')
    build.add_argument("--index", default="Flat", help="FAISS factory string")
    build.add_argument("--out", type=Path, required=True, help="folder of the index")
    build.add_argument("--shard-size", type=int, default=8192, help="passages a kill can cost")
    build.add_argument("--keep-vectors", action="store_true", help="for another index later")
    serve = commands.add_parser("serve", help="answer POST /retrieve like Search-R1", **shown)
    serve.set_defaults(command=_serve)
    serve.add_argument("folder", type=Path, help="that `build --out` wrote")
    serve.add_argument("--corpus", type=Path, help="where the corpus file lies now")
    serve.add_argument("--host", default="127.0.0.1", help="127.0.0.1 is this machine only")
    serve.add_argument("--port", type=_port, default=8000, help="from 1 to 65535")
    serve.add_argument("--topk", type=int, default=3, help="for requests that name none")
    serve.add_argument("--faiss-gpu", action="store_true", help="index on all GPUs, in float16")
    serve.add_argument("--parameters", default="", help="nprobe=32 (IVF) or efSearch=64 (HNSW)")
    for command in (build, serve):
        command.add_argument("--encoder", default="all_minilm", help="or FAMILY:FOLDER")
        command.add_argument("--device", default="cpu", help="of the encoder: cpu or cuda")
        command.add_argument("--precision", default="float32", help="or bfloat16, float16")
        command.add_argument("--batch-size", type=int, default=32, help="texts encoded at once")
    return parser


def _port(text: str) -> int:
    try:
        return check_port(int(text) if text.isascii() and text.isdigit() else text)
    except ValueError as error:  # digits beyond number too
        raise argparse.ArgumentTypeError(f"{text!r} is not from 1 to 65535") from error


if __name__ == "__main__":
    sys.exit(main())
