"""The rows of the table of failed calls in docs/troubleshooting.md, and the tests that show each of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Row:
    """A status, and the texts by which its row is found; no text if the row is for all messages of the status."""

    status: str
    phrases: tuple[str, ...]

    @property
    def key(self) -> str:
        return self.phrases[0] if self.phrases else self.status


def rows() -> list[Row]:
    page = (ROOT / "docs/troubleshooting.md").read_text("utf-8")
    table = page.partition("## A call fails")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| ([A-Z_]+) \|([^|]*)\|", table, re.MULTILINE)
    return [Row(status, tuple(re.findall(r"`([^`]+)`", texts))) for status, texts in cells]


# A row that tests/conformance/test_error_table.py does not show: it needs a server in a state of its own, or is written
# by the Python client and not by the server. The key is the first text of the row, the value a test.
ELSEWHERE: Mapping[str, str] = {
    # servers with small limits, with keys, at their start and at their end
    "has no credential": "conformance/test_credentials.py::test_wrong_keys_are_refused_unread",
    "API key is not valid": "conformance/test_credentials.py::test_wrong_keys_are_refused_unread",
    "the token": "conformance/test_credentials.py::test_wrong_tokens_are_refused_unread",
    "the credential has": "server/rpc/test_long_credentials.py::test_a_longer_credential_is_refused_every_time",
    "only an admin can change it": "conformance/test_credentials.py::test_a_voice_of_an_operator_is_not_changed",
    "only admins may call VoxCPMAdminService": "conformance/test_credentials.py::test_statistics_are_for_operators",
    "interval is": "server/operation/test_admin.py::test_a_watch_sends_statistics_at_intervals",
    "the server is not ready yet": "conformance/test_stop.py::test_calls_during_the_start_get_the_time_to_wait",
    "the server is shutting down; retry elsewhere": "server/rpc/test_bad_input.py::test_a_server_that_shuts_down",
    "no audio was sent, retry elsewhere": "conformance/test_stop.py::test_a_stream_that_outlasts_the_drain",
    "did not end within its drain_seconds": "conformance/test_stop.py::test_a_stream_that_outlasts_the_drain",
    "streams are open": "conformance/test_full.py::test_streams_beyond_the_limits_are_refused",
    "this connection has": "conformance/test_full.py::test_streams_beyond_the_limits_are_refused",
    "no slot became free": "conformance/test_full.py::test_requests_beyond_slots_and_queue_are_refused",
    "the estimated wait for a slot": (
        "server/rpc/test_refusals.py::test_a_full_queue_and_a_deadline_before_the_next_slot"
    ),
    "has used up its quota of text": (
        "server/speech/test_character_quota.py::test_a_stream_that_has_not_begun_is_refused"
    ),
    "requests wait": "conformance/test_full.py::test_requests_beyond_slots_and_queue_are_refused",
    "uploads": "conformance/test_full.py::test_recordings_beyond_the_limits_are_refused",
    "uploads of this caller hold": "conformance/test_full.py::test_recordings_beyond_the_limits_are_refused",
    "this caller has": "conformance/test_full.py::test_voices_beyond_the_limits_are_refused",
    "the store has room for": "conformance/test_full.py::test_voices_beyond_the_limits_are_refused",
    "DEADLINE_EXCEEDED": "conformance/test_cancellation.py::test_a_stream_that_ends_early_frees_its_slot",
    "pauses wait to be sent": "server/speech/test_silences.py::test_too_many_waiting_pauses_are_refused",
    "there is no LoRA adapter": "server/speech/test_loras.py::test_an_unknown_adapter_is_not_found",
    "speaks with the LoRA adapter": (
        "server/voices/test_voice_loras.py::test_an_adapter_that_is_gone_is_named_with_its_voice"
    ),
    "set lora to one of them": (
        "server/voices/test_voice_loras.py::test_two_voices_with_different_adapters_need_a_choice"
    ),
    "there is a LoRA adapter": "server/adapters/test_registration.py::test_errors_of_a_registration_name_the_field",
    "it does not fit this model": "system/loras/test_served_adapters.py::test_an_adapter_that_does_not_fit_is_refused",
    "the objects of a pickle": "server/adapters/test_registration.py::test_errors_of_a_registration_name_the_field",
    "has the SHA-256": "server/adapters/test_registration.py::test_errors_of_a_registration_name_the_field",
    "is not allowed": "server/adapters/test_registration.py::test_errors_of_a_registration_name_the_field",
    "keeps no memory for LoRA adapters": "engine/scheduling/test_adapters.py::test_an_engine_without",
    "no engine has the LoRA adapter": "pool/test_adapters.py::test_requests_go_to_another_engine",
    "cannot be fetched": "server/adapters/test_lora_downloads.py::test_faults_of_a_store_are_told_apart",
    "which normalise text": "server/text/test_normalize.py::test_without_the_packages_normalize_is_refused",
    "that normalises text was stopped": "system/normalize/test_normalizer.py::test_a_process_that_is_killed",
    # faults of engines, stores, decode workers and installations
    "no engine": "system/processes/test_app.py::test_a_lost_engine_is_reported_to_callers_and_balancers_and_restarted",
    "two engines in a row ended": (
        "system/chaos/test_continuations.py::test_a_request_that_ends_engines_ends_alone_after_two"
    ),
    "after audio was sent": "server/speech/test_claims.py::test_after_audio_no_error_asks_for_a_retry",
    "voice store": "server/voices/store/test_voice_faults.py::test_a_lost_store_is_unavailable_until_it_returns",
    "that decodes the recording was stopped": "audio/uploads/test_pool.py::test_a_job_whose_workers_are_all_killed",
    "took no message for": "server/rpc/test_unread_replies.py::test_a_client_that_reads_again_soon_gets_the_status",
    "CANCELLED": "server/rpc/test_unread_replies.py::test_a_stream_that_is_not_read_ends_and_frees_everything",
    "at the same time; retry": (
        "server/voices/test_voice_names.py::test_a_name_whose_server_has_died_is_free_after_a_while"
    ),
    "voices are named": (
        "server/voices/test_voices_by_name.py::test_an_ambiguous_name_lists_the_voices_and_changes_nothing"
    ),
    "names and the limit is": "server/voices/test_voice_names.py::test_a_voice_has_up_to_50_names",
    "was made for the model": "server/test_models.py::test_a_voice_is_encoded_by_its_model_and_used_with_it",
    "is damaged in the store": "server/voices/store/test_voice_faults.py::test_a_damaged_voice_is_reported",
    "references and hifi voices need": "server/test_older_models.py::test_a_stream_with_a_reference_is_refused",
    "a style needs": "server/test_older_models.py::test_a_style_is_refused_in_the_config_for_a_turn_and_in_a_preview",
    "a prompt needs": "server/qwen3_tts/test_variants.py::test_recordings_need_base",
    "speech without a voice needs": "server/qwen3_tts/test_variants.py::test_base_needs_a_voice",
    "latents need": "server/qwen3_tts/test_variants.py::test_latents_are_refused",
    "of which no audio is left": "server/qwen3_tts/test_variants.py::test_a_reference_is_not_reconstructed",
    "takes no language": "server/test_older_models.py::test_a_language_is_refused_in_the_config_and_for_a_turn",
    "language is": "server/qwen3_tts/test_variants.py::test_a_language_that_the_model_does_not_speak_is_refused",
    "other speeds than 1 need a rate": (
        "server/speech/test_effects.py::test_a_model_whose_rate_is_too_low_has_no_other_speed"
    ),
    "PyAV is missing": "audio/uploads/test_decode.py::test_wav_and_raw_pcm_need_neither_pyav_nor_soxr",
    "frames that the file lists": "audio/uploads/test_limits.py::test_an_index_of_millions_of_samples",
    "of memory to decode": "audio/uploads/test_limits.py::test_a_recording_that_needs_too_much_memory_is_refused",
    "the file ends before its index": "audio/test_files.py::test_an_mp4_file_without_its_index_says_so",
    "crashes its decoder": "audio/uploads/test_limits.py::test_a_decoder_that_crashes_is_the_fault_of_the_recording",
    "internal error": "server/rpc/test_bad_input.py::test_a_bug_is_logged_and_its_text_is_not_sent",
    # the Python client's own
    "no server answers": "clients/transport/test_retry.py::test_an_unreachable_server_is_an_error_with_its_address",
    "uses TLS, and this client does not": (
        "clients/transport/test_tls.py::test_every_mistake_is_an_error_at_once_that_names_it"
    ),
    "is not trusted": "clients/transport/test_tls.py::test_every_mistake_is_an_error_at_once_that_names_it",
    "may ask for a client certificate": (
        "clients/transport/test_tls.py::test_every_mistake_is_an_error_at_once_that_names_it"
    ),
    "not a gRPC server": "clients/transport/test_tls.py::test_a_web_server_is_no_speech_server",
    "it ended the connection": "clients/transport/test_lost.py::test_a_connection_that_ends_in_mid_stream_was_lost",
    "the connection was cut": "clients/transport/test_lost.py::test_a_stream_that_is_reset_was_cut",
    "the headers of this call are longer": "server/rpc/test_long_credentials.py::test_the_client_words_the_refusals",
    "the request has": "server/rpc/test_long_credentials.py::test_the_client_words_the_refusals",
    "the metadata has": "server/rpc/test_long_credentials.py::test_the_client_refuses_a_long_credential",
    "cut off": "clients/transport/test_retry.py::test_a_stream_cut_by_a_proxy_is_retried_before_its_first_audio",
    "nothing reads the audio": (
        "clients/texts/test_long_text.py::test_a_session_that_nothing_reads_takes_no_endless_text"
    ),
    "which is not HOST:PORT": "clients/transport/test_target.py::test_a_wrong_address_is_an_error_with_the_right_one",
    "unencrypted": "clients/transport/test_tls.py::test_an_api_key_never_leaves_this_host_unencrypted",
}


def missing() -> list[str]:
    """The tests of `ELSEWHERE` that do not exist."""
    lost = []
    for place in set(ELSEWHERE.values()):
        file, _, name = place.partition("::")
        path = ROOT / "tests" / file
        if not (path.exists() and f"def {name}" in path.read_text("utf-8")):
            lost.append(place)
    return sorted(lost)
