"""The rules of the layers, which tests/test_layers.py compares with the imports of every file."""

from collections.abc import Mapping

# A row for each folder, from the lowest to the highest, with what its files may import beside each other: folders, or
# single files of them. A row does not cover the folders below it. The files at the root of a package have rows of their
# own where they belong to several layers; so have models/base.py, models/footprint.py and the family.py of each family,
# which hosts read without PyTorch. Names without a package are those of voxcpm_grpc.
TABLE = """
text:
errors: text
machine: errors
network: errors
aio:
logs:
progress:
imports:
helper_process:
abilities: errors
request: abilities errors
events: request
hub: progress machine errors
lora_files: hub request errors
other_systems: errors
models.family:
models.voxcpm.family: models.family
models.qwen3_tts.family: models.family
models.families: models.qwen3_tts.family models.voxcpm.family models.family other_systems errors
checkpoint: models.families other_systems hub machine errors
settings: logs network machine errors
v1:
audio: errors
audio.uploads: audio helper_process logs errors
kernels.cuda:
kernels.launch: kernels.cuda progress
kernels.rows: kernels.launch
kernels.lora: kernels.rows kernels.launch
kernels.products: kernels.lora kernels.rows kernels.launch kernels.cuda
kernels.attention: kernels.rows kernels.launch kernels.cuda
kernels.conv:
kernels:
attention: kernels.attention kernels.rows
layers: attention kernels.products kernels.lora kernels.rows kernels.launch errors
models.base: attention request
models.footprint: models.base
models.voxcpm.config: layers abilities errors
models.voxcpm.text: errors
models.voxcpm.kernels: kernels.conv kernels.attention kernels.products kernels.rows kernels.launch kernels.cuda
models.voxcpm.codec: models.voxcpm.kernels models.voxcpm.config models.base layers kernels.conv kernels.launch
    kernels.cuda request
models.voxcpm.flow: models.voxcpm.kernels layers attention kernels.products kernels.cuda lora_files
models.voxcpm.compiled: models.voxcpm.flow models.voxcpm.codec layers lora_files
models.voxcpm: models.voxcpm.compiled models.voxcpm.flow models.voxcpm.codec models.voxcpm.kernels models.voxcpm.text
    models.voxcpm.config models.base models.footprint layers attention kernels.products kernels.rows kernels.launch
    kernels.cuda checkpoint models.voxcpm.family lora_files request abilities progress errors
models.qwen3_tts.config: layers models.qwen3_tts.family abilities errors
models.qwen3_tts.sampling: layers
models.qwen3_tts.kernels: models.qwen3_tts.sampling attention layers kernels.conv kernels.rows kernels.launch
models.qwen3_tts.codec: models.qwen3_tts.kernels models.qwen3_tts.config models.base layers kernels.conv
    kernels.launch request errors
models.qwen3_tts: models.qwen3_tts.codec models.qwen3_tts.kernels models.qwen3_tts.sampling models.qwen3_tts.config
    models.base models.footprint layers attention kernels.attention kernels.rows checkpoint models.qwen3_tts.family
    request progress errors
models: models.base models.footprint models.families
engine.scheduling: models.base kernels.launch lora_files events request logs errors
engine.start: models models.base models.footprint request machine errors
engine.device: engine.start engine.scheduling models.base attention kernels.rows kernels.launch settings events
    request progress errors
engine: engine.device engine.start engine.scheduling models models.base attention kernels.launch settings
    models.families lora_files events request progress logs errors machine
ipc: helper_process events request progress logs errors
worker.standby: ipc engine.load checkpoint helper_process logs imports machine
worker: ipc helper_process engine.load engine.start.compilation engine.scheduling.adapters settings checkpoint events
    request progress logs imports errors machine
pool: ipc lora_files events request progress logs aio errors text
pool.engines: pool worker worker.standby ipc helper_process settings lora_files request progress logs aio errors
pool.ray: pool.engines pool worker ipc settings request progress logs aio errors
embedded: pool.engines pool audio.uploads audio settings checkpoint events request aio errors
voxcpm_grpc: embedded errors
voxcpm_gateway.exchange:
voxcpm_gateway.config:
voxcpm_gateway.metrics: voxcpm_gateway.exchange
voxcpm_server.signals: ipc errors
voxcpm_server.auth: settings network errors
voxcpm_server.text.chinese:
voxcpm_server.text.english:
voxcpm_server.text.markup:
voxcpm_server.aligners.aligner:
voxcpm_server.aligners.english: voxcpm_server.aligners.aligner
voxcpm_server.aligners: voxcpm_server.aligners.english voxcpm_server.aligners.aligner ipc helper_process audio logs
    errors
voxcpm_server.download: ipc helper_process settings checkpoint progress errors
voxcpm_server.start: checkpoint progress
voxcpm_server.engines: voxcpm_server.download pool.ray pool.engines pool worker.standby settings checkpoint progress
voxcpm_server.front_count: pool.engines settings network
tools: settings
benchmarks.measuring:
benchmarks.pages:
benchmarks.engine: benchmarks.measuring engine engine.start settings checkpoint lora_files events request
benchmarks.replays: kernels.launch
benchmarks.trace: benchmarks.replays benchmarks.engine benchmarks.pages benchmarks.measuring engine engine.device
    models.voxcpm settings checkpoint events
benchmarks: benchmarks.replays benchmarks.engine benchmarks.measuring tools engine models.voxcpm models.voxcpm.flow
    models.voxcpm.codec models.voxcpm.kernels models.voxcpm.config layers attention kernels.products settings events
    request
benchmarks.report: benchmarks benchmarks.pages benchmarks.measuring checkpoint
voxcpm_client.status:
voxcpm_client.errors: voxcpm_client.status text
voxcpm_client.values: voxcpm_client.errors audio v1
voxcpm_client.messages: voxcpm_client.values voxcpm_client.errors audio v1 text
voxcpm_client.transport: voxcpm_client.values voxcpm_client.errors voxcpm_client.status v1 network
voxcpm_client.texts: voxcpm_client.values voxcpm_client.errors
voxcpm_client.uploads: voxcpm_client.transport voxcpm_client.messages voxcpm_client.values voxcpm_client.errors
    voxcpm_client.status audio v1
voxcpm_client: voxcpm_client.uploads voxcpm_client.texts voxcpm_client.transport voxcpm_client.messages
    voxcpm_client.values voxcpm_client.errors voxcpm_client.status audio v1 aio
voxcpm_client.wyoming: voxcpm_client voxcpm_client.texts voxcpm_client.messages voxcpm_client.values
    voxcpm_client.errors text
voxcpm_gateway.errors: voxcpm_client voxcpm_gateway.exchange
voxcpm_gateway.connections: voxcpm_gateway.errors network
voxcpm_gateway.requests: voxcpm_gateway.errors voxcpm_client voxcpm_gateway.exchange network
voxcpm_gateway.speech: voxcpm_gateway.requests voxcpm_gateway.errors voxcpm_client voxcpm_client.values
    voxcpm_gateway.exchange
voxcpm_gateway.state: voxcpm_gateway.speech voxcpm_gateway.requests voxcpm_client voxcpm_gateway.metrics
    voxcpm_gateway.config
voxcpm_gateway.routes: voxcpm_gateway.state voxcpm_gateway.speech voxcpm_gateway.requests voxcpm_gateway.connections
    voxcpm_gateway.errors voxcpm_client voxcpm_gateway.config voxcpm_gateway.exchange logs
voxcpm_gateway.page: voxcpm_gateway.exchange voxcpm_gateway.routes voxcpm_gateway.state voxcpm_gateway.speech
    voxcpm_gateway.requests voxcpm_gateway.errors voxcpm_client.transport voxcpm_gateway.config audio
voxcpm_gateway: voxcpm_gateway.routes voxcpm_gateway.state voxcpm_gateway.speech voxcpm_gateway.requests
    voxcpm_gateway.connections voxcpm_gateway.errors voxcpm_client voxcpm_gateway.metrics voxcpm_gateway.config
    voxcpm_gateway.exchange logs network
voxcpm_client.livekit: voxcpm_client voxcpm_client.texts voxcpm_client.values
voxcpm_client.pipecat: voxcpm_client voxcpm_client.texts voxcpm_client.values
voxcpm_server.http_process: voxcpm_gateway voxcpm_server.auth voxcpm_gateway.config ipc helper_process settings logs
    aio network errors
benchmarks.serving: voxcpm_client voxcpm_client.values benchmarks.pages benchmarks.measuring
benchmarks.capacity: benchmarks.serving voxcpm_client benchmarks.pages benchmarks.measuring machine
benchmarks.scaling: benchmarks.capacity benchmarks.serving voxcpm_client benchmarks.pages benchmarks.measuring
benchmarks.interference: benchmarks.serving voxcpm_client benchmarks.measuring audio
benchmarks.soak: benchmarks.serving voxcpm_client voxcpm_client.values benchmarks.pages benchmarks.measuring audio
benchmarks.dialogue: benchmarks.serving voxcpm_client voxcpm_client.values benchmarks.pages benchmarks.measuring
benchmarks.formats: benchmarks.serving voxcpm_client voxcpm_client.values benchmarks.pages benchmarks.measuring audio
benchmarks.restart: benchmarks.serving voxcpm_client voxcpm_client.messages benchmarks.pages benchmarks.measuring
tools.call_census: voxcpm_client
tools.engine_digest: voxcpm_client engine settings
tools.voice: benchmarks.serving voxcpm_client voxcpm_client.values benchmarks.pages benchmarks.measuring layers
    models.voxcpm.flow models.voxcpm.config
benchmarks.audible: tools.voice benchmarks.serving voxcpm_client benchmarks.pages benchmarks.measuring audio
voxcpm_server.text.normalize: voxcpm_server.text.english voxcpm_server.text.chinese ipc helper_process logs errors
voxcpm_server.text.words: text
voxcpm_server.values: audio.uploads audio events request abilities errors
voxcpm_server.text: voxcpm_server.values voxcpm_server.text.words voxcpm_server.text.normalize text
voxcpm_server.wire: voxcpm_server.values voxcpm_server.text.normalize audio.uploads audio v1 settings events request
    abilities errors text
voxcpm_server.voices.store: voxcpm_server.values settings request aio errors
voxcpm_server.voices: voxcpm_server.voices.store voxcpm_server.values voxcpm_server.auth pool audio.uploads audio
    settings request progress aio errors
voxcpm_server.speech.words: voxcpm_server.values voxcpm_server.text.words voxcpm_server.aligners
    voxcpm_server.aligners.aligner request
voxcpm_server.text.segments: voxcpm_server.wire voxcpm_server.text voxcpm_server.values voxcpm_server.text.words
    voxcpm_server.text.normalize voxcpm_server.text.markup
voxcpm_server.speech.calls: voxcpm_server.text.segments voxcpm_server.values voxcpm_server.text.words pool events
    errors text
voxcpm_server.speech: voxcpm_server.speech.calls voxcpm_server.speech.words voxcpm_server.text.segments
    voxcpm_server.voices voxcpm_server.wire voxcpm_server.text voxcpm_server.values voxcpm_server.text.words
    voxcpm_server.aligners pool audio v1 settings events request abilities logs aio errors text
voxcpm_server.rpc: voxcpm_server.speech voxcpm_server.values voxcpm_server.auth settings logs network errors text
benchmarks.segmentation: voxcpm_server.text.segments voxcpm_server.values voxcpm_server.text.words benchmarks.pages
    benchmarks.measuring
benchmarks.languages: benchmarks.segmentation benchmarks.dialogue benchmarks.serving voxcpm_client benchmarks.pages
    benchmarks.measuring
voxcpm_server.models: voxcpm_server.speech voxcpm_server.voices voxcpm_server.voices.store voxcpm_server.wire
    voxcpm_server.values pool audio.uploads settings request aio errors
voxcpm_server.summary: voxcpm_server.models settings logs
voxcpm_server.operation: voxcpm_server.models voxcpm_server.rpc voxcpm_server.voices voxcpm_server.wire
    voxcpm_server.values pool request logs network errors
voxcpm_server.adapters: voxcpm_server.operation voxcpm_server.models voxcpm_server.values lora_files hub request logs
    errors
voxcpm_server.services: voxcpm_server.adapters voxcpm_server.operation voxcpm_server.models voxcpm_server.rpc
    voxcpm_server.speech voxcpm_server.speech.words voxcpm_server.voices voxcpm_server.voices.store voxcpm_server.wire
    voxcpm_server.text voxcpm_server.values voxcpm_server.text.normalize voxcpm_server.aligners voxcpm_server.auth
    pool v1 settings request logs aio network machine errors
voxcpm_server.contracts: voxcpm_server.services voxcpm_server.models voxcpm_server.rpc voxcpm_server.voices
    voxcpm_server.values v1 errors
voxcpm_server.contracts.google: voxcpm_server.contracts voxcpm_server.services voxcpm_server.models voxcpm_server.rpc
    voxcpm_server.values voxcpm_server.auth audio v1 errors
voxcpm_server.contracts.localai: voxcpm_server.contracts voxcpm_server.services voxcpm_server.models voxcpm_server.rpc
    audio v1 errors
voxcpm_server.contracts.riva: voxcpm_server.contracts voxcpm_server.services voxcpm_server.models voxcpm_server.rpc
    voxcpm_server.text.words v1 errors
voxcpm_server.contracts.known: voxcpm_server.contracts.riva voxcpm_server.contracts.localai
    voxcpm_server.contracts.google voxcpm_server.services settings
voxcpm_server.stages: voxcpm_server.services voxcpm_server.operation voxcpm_server.summary voxcpm_server.models
    voxcpm_server.rpc voxcpm_server.voices.store voxcpm_server.text voxcpm_server.text.normalize
    voxcpm_server.http_process voxcpm_server.engines voxcpm_server.start voxcpm_server.aligners voxcpm_server.auth
    pool.ray pool worker.standby audio.uploads audio settings progress aio errors text
voxcpm_server.app: voxcpm_server.stages voxcpm_server.contracts.known voxcpm_server.services voxcpm_server.operation
    voxcpm_server.start pool worker.standby settings aio machine
voxcpm_server.fronts: voxcpm_server.app voxcpm_server.stages voxcpm_server.operation voxcpm_server.engines
    voxcpm_server.start pool.engines pool worker.standby ipc settings progress aio network errors
voxcpm_server.main: voxcpm_server.fronts voxcpm_server.app voxcpm_server.front_count voxcpm_server.engines
    voxcpm_server.auth voxcpm_server.signals worker.standby settings request logs aio machine errors
voxcpm_client.cli.terminal: voxcpm_client voxcpm_client.texts text
voxcpm_client.cli.speak: voxcpm_client.cli.terminal voxcpm_client voxcpm_client.texts voxcpm_client.values audio text
voxcpm_client.cli.inspect: voxcpm_client.cli.speak voxcpm_client.cli.terminal voxcpm_client voxcpm_client.messages
    text
voxcpm_client.cli.operate: voxcpm_client.cli.inspect voxcpm_client.cli.speak voxcpm_client.cli.terminal voxcpm_client
    voxcpm_client.wyoming voxcpm_client.transport voxcpm_gateway voxcpm_server.main voxcpm_server.auth
    engine.start.memory worker.standby settings.sources settings.models settings.schema checkpoint hub imports aio
    network errors text
voxcpm_client.cli: voxcpm_client.cli.operate voxcpm_client.cli.inspect voxcpm_client.cli.speak
    voxcpm_client.cli.terminal voxcpm_client.errors text
benchmarks.front: voxcpm_server.fronts voxcpm_server.app voxcpm_server.speech voxcpm_server.wire voxcpm_server.values
    benchmarks.serving voxcpm_client voxcpm_client.values benchmarks.pages benchmarks.measuring
    voxcpm_server.front_count voxcpm_server.auth v1 pool.engines pool ipc engine.scheduling settings events request
    abilities worker.gathering logs aio errors machine
benchmarks.gateway: benchmarks.front benchmarks.serving voxcpm_client benchmarks.pages benchmarks.measuring
benchmarks.word_times: benchmarks.front voxcpm_server.app voxcpm_client benchmarks.pages benchmarks.measuring
    pool.engines pool settings events request
benchmarks.event_loop: voxcpm_server.app benchmarks.measuring audio v1 settings
"""
RULES: Mapping[str, tuple[str, ...]] = {
    row: tuple(names.split())
    for row, names in (line.split(":") for line in TABLE.replace("\n    ", " ").strip().splitlines())
}
FOREIGN: Mapping[str, tuple[str, ...]] = {  # the only rows that may import these packages
    "grpc": (
        *("v1", "voxcpm_server.rpc", "voxcpm_server.services"),
        *(
            "voxcpm_client.errors",
            "voxcpm_client.status",
            "voxcpm_client.transport",
            "voxcpm_client.uploads",
            "voxcpm_client",
        ),
        "benchmarks.event_loop",
    ),
    "google": (
        *("v1", "voxcpm_server.wire", "voxcpm_server.services", "tools"),
        *("voxcpm_server.contracts", "voxcpm_server.contracts.google", "voxcpm_server.contracts.localai"),
        *("voxcpm_server.contracts.riva", "voxcpm_client.errors", "voxcpm_client.messages", "voxcpm_client.transport"),
    ),
    "torch": (
        *("kernels.attention", "kernels.conv", "kernels.cuda", "kernels.launch", "kernels.lora"),
        *("kernels.products", "kernels.rows", "attention", "layers"),
        *(
            "models.base",
            "models.footprint",
            "models.voxcpm",
            "models.voxcpm.codec",
            "models.voxcpm.config",
            "models.voxcpm.flow",
        ),
        *(
            "models.voxcpm.compiled",
            "models.voxcpm.kernels",
            "models.qwen3_tts",
            "models.qwen3_tts.codec",
            "models.qwen3_tts.config",
            "models.qwen3_tts.kernels",
            "models.qwen3_tts.sampling",
        ),
        *("models", "engine", "engine.device", "engine.scheduling", "engine.start"),
        *("benchmarks.engine", "benchmarks.trace", "benchmarks.replays", "benchmarks", "tools", "tools.voice"),
    ),
    "triton": (
        *("kernels.attention", "kernels.conv", "kernels.cuda", "kernels.launch", "kernels.lora", "kernels.products"),
        *("kernels.rows", "models.qwen3_tts.kernels", "models.voxcpm.kernels", "tools.voice"),
    ),
    "huggingface_hub": ("hub",),
    "jwt": ("voxcpm_server.auth",),
    "opentelemetry": ("voxcpm_server.rpc", "voxcpm_client.transport"),
    "livekit": ("voxcpm_client.livekit",),
    "pipecat": ("voxcpm_client.pipecat",),
    "wyoming": ("voxcpm_client.wyoming",),
    "fsspec": ("voxcpm_server.voices.store", "voxcpm_server.adapters"),
}
# Not part of every installation, so imported in the function that needs them.
LAZY = {
    *("av", "cryptography", "huggingface_hub", "icu4py", "inflect", "jwt", "opentelemetry", "prometheus_client", "ray"),
    *("pocketsphinx", "sounddevice"),
}
NEEDS_EXTRA = ("voxcpm_client.livekit", "voxcpm_client.pipecat", "voxcpm_client.wyoming")  # they extend its classes
LAZY_IN_CLIENT = ("voxcpm_gateway", "voxcpm_server", "settings.sources", "checkpoint", "hub", *NEEDS_EXTRA)
NEEDS_PACKAGES = ("figure", "figures", "__main__")  # names of files that need matplotlib, or run a command
# core_log sets the level of gRPC's log, which is a variable, for the time of an import. Proxies, gRPC's support of
# forks, the threads of tokenizers, and prometheus-client's folder of several processes are variables only.
READ_ENVIRONMENT = (
    "voxcpm_grpc.settings.sources",
    "voxcpm_grpc.network.proxies",
    "voxcpm_grpc.engine.load",
    "voxcpm_server.http_process",
    "voxcpm_client.transport.core_log",
    "voxcpm_client.transport.forks",
)
