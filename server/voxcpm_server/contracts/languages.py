"""The language of a request, for which contracts have one field and VoxCPMService has two."""

from __future__ import annotations

from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.contracts.errors import in_words_of
from voxcpm_server.models import Models
from voxcpm_server.values.languages import read_language


def set_language(found: pb.GenerateConfig, name: str, field: str, models: Models) -> None:
    """Set the language of the text, and tell the model to speak it if the model can be told.

    A language that an option of the request names for the speech stays. The model is that of the config.

    name: a language, as for `read_language`; empty for none
    field: path of the field of the contract, for errors

    Raises InvalidRequest for a language that is unknown, or that a model of languages does not have.
    """
    with in_words_of({"language": field}):
        language = read_language(name)
        model = models.get(found.model)
        if language and not found.turn.language and model is not None and model.info.can("language"):
            model.info.require_language(language)
            found.turn.language = language
    found.segmentation.language = language
