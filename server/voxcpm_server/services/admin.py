"""The admin port: VoxCPMAdminService and channelz, for operators."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import grpc
from grpc_channelz.v1 import channelz, channelz_pb2, channelz_pb2_grpc

from voxcpm_grpc.errors import PermissionDenied, VoxCPMError
from voxcpm_grpc.machine.home import home, needed_home
from voxcpm_grpc.settings.operation import AdminSettings
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.v1 import admin_pb2 as pb
from voxcpm_grpc.v1 import admin_pb2_grpc
from voxcpm_server.adapters.registry import LoraRegistry
from voxcpm_server.adapters.sources import LoraSources
from voxcpm_server.auth.authenticator import Authenticator
from voxcpm_server.auth.principal import Caller
from voxcpm_server.models import Models
from voxcpm_server.operation.host import EngineControl, Fronts
from voxcpm_server.rpc import tls
from voxcpm_server.rpc.call import AdmissionGate, Call
from voxcpm_server.rpc.open_calls import OpenCalls
from voxcpm_server.services.contract import handlers
from voxcpm_server.services.handler import rpc, status_of
from voxcpm_server.services.reflection import Reflection
from voxcpm_server.services.server import RpcServer, bind, options
from voxcpm_server.services.statistics import ServerStatistics
from voxcpm_server.wire import admin
from voxcpm_server.wire import statistics as wire

SERVICE = pb.DESCRIPTOR.services_by_name["VoxCPMAdminService"]
CHANNELZ = channelz_pb2.DESCRIPTOR.services_by_name["Channelz"].full_name
LORA_CACHE = ".cache/voxcpm-grpc/loras"  # the folder lies under the user's home
STOP_SECONDS = 1.0


class AdminService(admin_pb2_grpc.VoxCPMAdminServiceServicer):
    """The RPCs. Admins may call them, and everyone if callers have no identity."""

    def __init__(
        self,
        stats: ServerStatistics,
        registry: LoraRegistry,
        control: EngineControl,
        authenticator: Authenticator,
        settings: Settings,
    ) -> None:
        self.authenticator = authenticator
        self.calls = OpenCalls()
        self.gate = AdmissionGate(settings.limits)
        self.write_seconds = settings.limits.write_seconds
        self.metrics = None
        self.tracing = None  # statistics are not worth a trace
        self._stats = stats
        self._loras = registry
        self._engines = control
        self._stopped = asyncio.Event()

    @rpc(stream=False)
    async def GetStats(self, request: pb.GetStatsRequest, call: Call) -> pb.GetStatsResponse:
        require_admin(call.caller)
        return wire.answer(await self._stats.read())

    @rpc(stream=False)
    async def WatchStats(self, request: pb.WatchStatsRequest, call: Call) -> None:
        require_admin(call.caller)
        seconds = wire.interval(request)
        while not self._stopped.is_set():
            await call.replies.write(wire.update(await self._stats.read()))
            try:
                async with asyncio.timeout(seconds):
                    await self._stopped.wait()
            except TimeoutError:
                continue

    @rpc(stream=False)
    async def RegisterLora(self, request: pb.RegisterLoraRequest, call: Call) -> pb.RegisterLoraResponse:
        require_admin(call.caller)
        return admin.registered(await self._loras.register(admin.registration(request), call.caller.key))

    @rpc(stream=False)
    async def ListLoras(self, request: pb.ListLorasRequest, call: Call) -> pb.ListLorasResponse:
        require_admin(call.caller)
        return admin.listing(await self._loras.list(admin.model(request)))

    @rpc(stream=False)
    async def UnregisterLora(self, request: pb.UnregisterLoraRequest, call: Call) -> pb.UnregisterLoraResponse:
        require_admin(call.caller)
        await self._loras.unregister(*admin.name_and_model(request), call.caller.key)
        return admin.unregistered()

    @rpc(stream=False)
    async def DrainEngine(self, request: pb.DrainEngineRequest, call: Call) -> pb.DrainEngineResponse:
        require_admin(call.caller)
        await self._engines.drain(admin.engine(request), restart=request.restart, caller=call.caller.key)
        return admin.drained()

    @rpc(stream=False)
    async def StartEngine(self, request: pb.StartEngineRequest, call: Call) -> pb.StartEngineResponse:
        require_admin(call.caller)
        await self._engines.start(admin.engine(request), caller=call.caller.key)
        return admin.started()

    def stop(self) -> None:
        """End each WatchStats call, open or new."""
        self._stopped.set()


def require_admin(caller: Caller) -> None:
    """Raises PermissionDenied."""
    if not caller.may_administer:
        raise PermissionDenied(
            "only admins may call VoxCPMAdminService and channelz; use a key that was made with --admin, a token with "
            "the scope of auth.admin_scope, or a certificate of auth.admin_certificates"
        )


class AdminsOnly(grpc.aio.ServerInterceptor):
    """Lets only admins call channelz, whose service has no authentication of its own."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(f"/{CHANNELZ}/"):
            return handler

        async def guarded(request: Any, context: grpc.aio.ServicerContext) -> Any:
            try:
                metadata = context.invocation_metadata() or ()
                require_admin(Caller.of(await self._authenticator.principal(metadata, context.auth_context), ""))
            except VoxCPMError as error:
                await context.abort(*status_of(error, ""))
            return await handler.unary_unary(request, context)

        return handler._replace(unary_unary=guarded)


class AdminServer:
    """The admin port, with health and reflection, too. It is open from the start to the end of the drain."""

    def __init__(
        self, settings: Settings, server: RpcServer, authenticator: Authenticator, fronts: Fronts | None = None
    ) -> None:
        """`fronts`: the others, which share the port. Raises StartupError if a source of adapters is not valid."""
        self.stats = ServerStatistics(server, fronts)
        self.loras = LoraRegistry(LoraSources(settings.admin.lora_sources, _lora_cache(settings.admin)), fronts)
        self.engines = EngineControl()
        self._listen = settings.admin.listen or ""
        self._tls = settings.tls
        self._service = AdminService(self.stats, self.loras, self.engines, authenticator, settings)
        self._reflections = OpenCalls()
        self._shared = fronts is not None
        served = options(settings, shared=self._shared)
        self._server = grpc.aio.server(interceptors=(AdminsOnly(authenticator),), options=served)
        service = grpc.method_handlers_generic_handler(SERVICE.full_name, handlers(SERVICE, self._service))
        self._server.add_generic_rpc_handlers((service,))
        channelz_pb2_grpc.add_ChannelzServicer_to_server(channelz.aio.ChannelzServicer(), self._server)
        server.health.register(self._server)
        Reflection(self._reflections, (SERVICE.full_name, CHANNELZ)).register(self._server)

    def serve(self, models: Models) -> None:
        """Answer about these models, and change them, from now on."""
        self.loras.serve(models)
        self.engines.serve(models)

    async def open(self) -> str:
        """Open the port, and return its address with the real port. Raises StartupError."""
        address = bind(self._server, self._listen, tls.credentials(self._tls), shared=self._shared)
        await self._server.start()
        return address

    async def stop(self) -> None:
        """End all calls."""
        self._service.stop()
        self._reflections.end(STOP_SECONDS)
        await self._server.stop(STOP_SECONDS)


def _lora_cache(settings: AdminSettings) -> Path:
    """The folder of downloaded adapters, which nothing uses without sources. Raises StartupError."""
    if settings.lora_cache is not None:
        return settings.lora_cache
    if settings.lora_sources:
        return needed_home("set admin.lora_cache to a folder for adapters") / LORA_CACHE
    return (home() or Path(gettempdir())) / LORA_CACHE
