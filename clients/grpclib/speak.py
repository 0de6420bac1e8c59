"""Speaks each line of stdin as it arrives, and writes WAV to stdout:

    python speak.py HOST:PORT VOICE < text.txt > speech.wav

VOXCPM_CLIENT_API_KEY is the bearer token. VOXCPM_CLIENT_CA, a file of certificates, turns TLS on.
"""

import asyncio
import os
import ssl
import sys
import threading

from google.rpc import error_details_pb2  # noqa: F401, the types of status details
from grpclib.client import Channel
from grpclib.exceptions import GRPCError
from voxcpm_grpc.v1.tts_grpc import VoxCPMServiceStub

from voxcpm_grpc.v1 import tts_pb2 as pb


def read_lines(loop: asyncio.AbstractEventLoop, lines: asyncio.Queue) -> None:
    for line in sys.stdin:
        loop.call_soon_threadsafe(lines.put_nowait, line)
    loop.call_soon_threadsafe(lines.put_nowait, None)


async def send(stream, voice: str) -> None:
    config = pb.GenerateConfig(conditioning=pb.Conditioning(voice=voice))
    config.turn.sampling.seed = 7  # the same seed and text give the same speech; without it, the server draws one
    config.output.encoding = pb.AUDIO_ENCODING_WAV
    await stream.send_message(pb.GenerateRequest(config=config))
    threading.Thread(
        target=read_lines, args=(asyncio.get_running_loop(), lines := asyncio.Queue()), daemon=True
    ).start()
    while (line := await lines.get()) is not None:
        await stream.send_message(pb.GenerateRequest(text=line))
    await stream.end()  # the half-close: no more text. The server speaks the rest and ends the stream


async def speak(address: str, voice: str) -> None:
    host, port = address.rsplit(":", 1)
    key, ca = os.environ.get("VOXCPM_CLIENT_API_KEY"), os.environ.get("VOXCPM_CLIENT_CA")
    (tls := ssl.create_default_context(cafile=ca)).set_alpn_protocols(["h2"])
    metadata = {"authorization": f"Bearer {key}"} if key else None
    channel = Channel(host, int(port), ssl=tls if ca else None)
    async with channel, VoxCPMServiceStub(channel).Generate.open(metadata=metadata) as stream:
        await stream.send_request()
        sending = asyncio.create_task(send(stream, voice))
        async for chunk in stream:
            sys.stdout.buffer.write(chunk.audio)  # every audio, in order; empty in messages that only report
            sys.stdout.buffer.flush()
        await sending


try:
    asyncio.run(speak(*sys.argv[1:]))
except GRPCError as error:
    details = "".join(f"\n{type(detail).__name__} {detail}" for detail in error.details or ())
    sys.exit(f"{error.status.name}: {error.message}{details}")
