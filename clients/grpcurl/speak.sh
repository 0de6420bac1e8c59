#!/usr/bin/env bash
# Speaks each line of stdin as it arrives, and writes WAV to stdout:
#   ./speak.sh HOST:PORT VOICE < text.txt > speech.wav
# VOXCPM_CLIENT_API_KEY is the bearer token. VOXCPM_CLIENT_CA, a file of certificates, turns TLS on.
# Needs grpcurl, jq and base64. The server describes itself by reflection, so no proto file is needed.
set -euo pipefail
options=(-max-msg-sz 67108864) # 4 MiB, the default, are too few for long latents
if [ "${VOXCPM_CLIENT_CA:-}" ]; then options+=(-cacert "$VOXCPM_CLIENT_CA"); else options+=(-plaintext); fi
# grpcurl reads the variable itself, so the key is not on its command line, which other users see.
if [ "${VOXCPM_CLIENT_API_KEY:-}" ]; then
    options+=(-expand-headers -H 'authorization: Bearer ${VOXCPM_CLIENT_API_KEY}')
fi

messages() { # The config, and a text for each line. Their end is the half-close.
    jq --raw-input --null-input --compact-output --unbuffered --arg voice "$1" '
        {config: {conditioning: {voice: $voice}, turn: {sampling: {seed: "7"}},
                  output: {encoding: "AUDIO_ENCODING_WAV"}}},
        (inputs | {text: (. + "\n")})'
}

audio() { # Every audio, in order. Messages that only report have none.
    jq --raw-output --unbuffered '.audio // empty' | while read -r part; do base64 -d <<< "$part"; done
}

# The exit status is that of grpcurl: 64 and the code of the status, such as 69 for NOT_FOUND. It prints the details.
messages "$2" | grpcurl "${options[@]}" -d @ "$1" voxcpm_grpc.v1.VoxCPMService/Generate | audio
