#!/usr/bin/env bash
# Speaks each line of stdin as it arrives, and writes WAV to stdout:
#   ./speak.sh HOST:PORT VOICE < text.txt > speech.wav
# VOXCPM_CLIENT_API_KEY is the bearer token. VOXCPM_CLIENT_CA, a file of certificates, turns TLS on.
# Needs buf, jq and base64. The server describes itself by reflection, so no proto file is needed.
set -euo pipefail
options=(--protocol grpc)
scheme=http
if [ "${VOXCPM_CLIENT_CA:-}" ]; then
    scheme=https options+=(--cacert "$VOXCPM_CLIENT_CA")
else
    options+=(--http2-prior-knowledge) # without TLS, nothing negotiates HTTP/2
fi

headers() { # A file, so that the key is not on the command line, which other users see.
    if [ "${VOXCPM_CLIENT_API_KEY:-}" ]; then echo "authorization: Bearer $VOXCPM_CLIENT_API_KEY"; fi
}

messages() { # The config, and a text for each line. Their end is the half-close.
    jq --raw-input --null-input --compact-output --unbuffered --arg voice "$1" '
        {config: {conditioning: {voice: $voice}, turn: {sampling: {seed: "7"}},
                  output: {encoding: "AUDIO_ENCODING_WAV"}}},
        (inputs | {text: (. + "\n")})'
}

audio() { # Every audio, in order. Messages that only report have none.
    jq --raw-output --unbuffered '.audio // empty' | while read -r part; do base64 -d <<< "$part"; done
}

# The exit status is that of buf: 8 times the code of the status, such as 40 for NOT_FOUND. It prints the details.
messages "$2" | buf curl "${options[@]}" --header @<(headers) --reflect-header '*' -d @- \
    "$scheme://$1/voxcpm_grpc.v1.VoxCPMService/Generate" | audio
