"""Paths of sources that several suites judge, and tests of other folders that a suite runs, too."""

MODELS = ("voxcpm_grpc/models/", "voxcpm_grpc/layers/", "voxcpm_grpc/attention/")
ENGINE = ("voxcpm_grpc/engine/", "voxcpm_grpc/request.py", *MODELS)
KERNELS = tuple(f"voxcpm_grpc/{one}/" for one in ("kernels", "models/voxcpm/kernels", "models/qwen3_tts/kernels"))
PROCESSES = ("voxcpm_grpc/pool/", "voxcpm_grpc/ipc/", "voxcpm_grpc/worker/")
CONTRACT = ("protos/", "voxcpm_grpc/v1/", "buf.yaml")
START = tuple(f"server/voxcpm_server/{one}" for one in ("app.py", "engines.py", "main.py", "signals.py", "start.py"))
RPC = tuple(f"server/voxcpm_server/{one}/" for one in ("rpc", "services", "operation"))
WIRE = ("server/voxcpm_server/wire/", "server/voxcpm_server/values/")
TEXT = ("server/voxcpm_server/text/", "server/voxcpm_server/speech/")
VOICES = ("server/voxcpm_server/voices/", "server/voxcpm_server/speech/")
PAGE = ("server/voxcpm_gateway/page/",)
APART = ("server/voxcpm_gateway/", "server/deploy/")  # from the processes of a server
QWEN3_TOOLS = ("tools/qwen3", "tools/make_qwen3")
SERVER = (*RPC, *WIRE, *TEXT, *START)
# Files of tests/clients, tests/server and tests/server/gateway that meet most of their packages in little time.
OLDEST_CLIENT = (
    *("cli/test_cli", "cli/test_control_characters", "cli/test_top", "test_freed", "messages/test_messages"),
    *("test_stream", "texts/test_long_text", "texts/test_pauses", "texts/test_text_options"),
    *("texts/test_timed_words", "texts/test_word_times", "texts/test_wrong_text", "transport/test_lifetime"),
    *("transport/test_lost", "transport/test_overwritten_status", "transport/test_retry"),
    *("transport/test_status", "transport/test_target", "transport/test_tls", "values/test_arguments"),
    *("values/test_recordings", "test_voices"),
)
OLDEST_SERVER = (
    *("operation/test_logs", "operation/test_metrics", "operation/test_summary", "rpc/test_long_credentials"),
    *("rpc/test_tls", "services/test_reflection", "services/test_start", "speech/test_formats"),
    *("speech/test_generate", "text/test_languages", "voices/store/test_voice_store", "voices/test_voice_calls"),
    "voices/test_voices",
)
OLDEST_GATEWAY = (
    *("addresses", "clients", "connections", "freed", "known_callers", "older", "operation", "page", "speech"),
    *("statuses", "upgrades", "voices", "words"),
)
THOROUGH_GATEWAY = ("access", "bodies", "heads", "openai_habits", "own_names")
