"""The census of a call. The suite `benchmarks` takes one."""

from tools.call_census import Function, report


def test_functions_count_once_with_the_classes_of_methods_and_without_parts_and_generated_code():
    found = [
        Function("voxcpm_grpc/engine/engine.py", "Engine.step", 1),
        Function("voxcpm_grpc/engine/engine.py", "Engine.step", 1),  # of another process
        Function("voxcpm_grpc/engine/engine.py", "Engine.add", 9),
        Function("voxcpm_grpc/engine/engine.py", "Engine.step.<locals>.inner", 3),
        Function("voxcpm_grpc/engine/engine.py", "Engine.step.<locals>.<listcomp>", 4),
        Function("voxcpm_grpc/engine/engine.py", "<module>", 1),
        Function("voxcpm_grpc/request.py", "content_of", 1),
        Function("server/voxcpm_server/rpc/call.py", "Call.identify", 1),
        Function("voxcpm_grpc/v1/tts_pb2_grpc.py", "VoxCPMServiceStub.__init__", 1),
        Function(".venv/lib/python3.11/site-packages/grpc/aio.py", "Server.start", 1),
    ]
    assert list(report(found)) == [
        "5 functions, 2 classes, 3 files",
        "    3    1  voxcpm_grpc/engine",
        "    1    0  voxcpm_grpc",
        "    1    1  voxcpm_server/rpc",
    ]
