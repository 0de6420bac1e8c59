"""Tables between the enumerations of the protocol and those of the server."""

from __future__ import annotations

from voxcpm_grpc.audio import Encoding
from voxcpm_grpc.events import FinishReason
from voxcpm_grpc.request import Priority, Role
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.values.inputs import Continuity, FirstSegment, PreviewMode, SegmentationMode
from voxcpm_server.values.outputs import CutReason, EndReason, WarningKind
from voxcpm_server.values.voice import VoiceKind

ENCODINGS = {
    pb.AUDIO_ENCODING_PCM_S16LE: Encoding.PCM_S16LE,
    pb.AUDIO_ENCODING_PCM_F32LE: Encoding.PCM_F32LE,
    pb.AUDIO_ENCODING_WAV: Encoding.WAV,
    pb.AUDIO_ENCODING_MULAW: Encoding.MULAW,
    pb.AUDIO_ENCODING_ALAW: Encoding.ALAW,
    pb.AUDIO_ENCODING_MP3: Encoding.MP3,
    pb.AUDIO_ENCODING_OGG_OPUS: Encoding.OGG_OPUS,
    pb.AUDIO_ENCODING_FLAC: Encoding.FLAC,
}
ENCODING_VALUES = {encoding: value for value, encoding in ENCODINGS.items()}
MODES = {
    pb.SEGMENTATION_MODE_UNSPECIFIED: SegmentationMode.SENTENCE,
    pb.SEGMENTATION_MODE_SENTENCE: SegmentationMode.SENTENCE,
    pb.SEGMENTATION_MODE_MANUAL: SegmentationMode.MANUAL,
    pb.SEGMENTATION_MODE_TOKENS: SegmentationMode.TOKENS,
}
FIRST_SEGMENTS = {
    pb.FIRST_SEGMENT_UNSPECIFIED: FirstSegment.SENTENCE,
    pb.FIRST_SEGMENT_SENTENCE: FirstSegment.SENTENCE,
    pb.FIRST_SEGMENT_EAGER: FirstSegment.EAGER,
}
CONTINUITIES = {
    pb.CONTINUITY_MODE_UNSPECIFIED: Continuity.CARRY,
    pb.CONTINUITY_MODE_CARRY: Continuity.CARRY,
    pb.CONTINUITY_MODE_INDEPENDENT: Continuity.INDEPENDENT,
}
PRIORITIES = {
    pb.PRIORITY_UNSPECIFIED: Priority.INTERACTIVE,
    pb.PRIORITY_INTERACTIVE: Priority.INTERACTIVE,
    pb.PRIORITY_BATCH: Priority.BATCH,
}
ROLES = {
    pb.AUDIO_ROLE_UNSPECIFIED: None,
    pb.AUDIO_ROLE_PROMPT: Role.PROMPT,
    pb.AUDIO_ROLE_REFERENCE: Role.REFERENCE,
}
KINDS = {
    pb.VOICE_KIND_UNSPECIFIED: None,
    pb.VOICE_KIND_PROMPT: VoiceKind.PROMPT,
    pb.VOICE_KIND_REFERENCE: VoiceKind.REFERENCE,
    pb.VOICE_KIND_HIFI: VoiceKind.HIFI,
    pb.VOICE_KIND_SPEAKER: VoiceKind.SPEAKER,
}
KIND_VALUES = {kind: value for value, kind in KINDS.items()}
PREVIEWS = {
    pb.PREVIEW_MODE_UNSPECIFIED: PreviewMode.NONE,
    pb.PREVIEW_MODE_NONE: PreviewMode.NONE,
    pb.PREVIEW_MODE_RECONSTRUCTION: PreviewMode.RECONSTRUCTION,
    pb.PREVIEW_MODE_SYNTHESIS: PreviewMode.SYNTHESIS,
}
CUT_VALUES = {
    None: pb.CUT_REASON_UNSPECIFIED,
    CutReason.SENTENCE: pb.CUT_REASON_SENTENCE,
    CutReason.PAUSE: pb.CUT_REASON_PAUSE,
    CutReason.CLAUSE: pb.CUT_REASON_CLAUSE,
    CutReason.LIMIT: pb.CUT_REASON_LIMIT,
    CutReason.FLUSH: pb.CUT_REASON_FLUSH,
    CutReason.UNREAD: pb.CUT_REASON_UNREAD,
}
WARNING_VALUES = {
    WarningKind.SHORT_RECORDING: pb.WARNING_KIND_SHORT_RECORDING,
    WarningKind.CLIPPED_RECORDING: pb.WARNING_KIND_CLIPPED_RECORDING,
    WarningKind.NOISY_RECORDING: pb.WARNING_KIND_NOISY_RECORDING,
    WarningKind.LANGUAGE: pb.WARNING_KIND_LANGUAGE,
    WarningKind.TRUNCATED_RECORDING: pb.WARNING_KIND_TRUNCATED_RECORDING,
    WarningKind.CANCELLED_CHANNELS: pb.WARNING_KIND_CANCELLED_CHANNELS,
    WarningKind.RECORDING_LEVEL: pb.WARNING_KIND_RECORDING_LEVEL,
    WarningKind.WORD_TIMES: pb.WARNING_KIND_WORD_TIMES,
    WarningKind.TRANSCRIPT: pb.WARNING_KIND_TRANSCRIPT,
    WarningKind.CONTINUITY: pb.WARNING_KIND_CONTINUITY,
}
REASON_VALUES = {
    None: pb.FINISH_REASON_UNSPECIFIED,
    FinishReason.STOP: pb.FINISH_REASON_COMPLETE,
    FinishReason.MAX_STEPS: pb.FINISH_REASON_MAX_STEPS,
    FinishReason.SILENCE: pb.FINISH_REASON_SILENCE,
    EndReason.INTERRUPTED: pb.FINISH_REASON_INTERRUPTED,
    EndReason.IDLE: pb.FINISH_REASON_IDLE,
    EndReason.NOTHING_TO_SAY: pb.FINISH_REASON_NOTHING_TO_SAY,
}
