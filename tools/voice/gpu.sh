#!/usr/bin/env bash
# The steps of the recipe that need a GPU, one a call. A step that is done is not repeated, and one that was interrupted
# goes on. With two GPUs the teacher speaks on both, and the model and the decoder are trained at the same time.
#
#   bash tools/voice/gpu.sh STEP [SECONDS]
#
#   teach    the teacher speaks: build/voice/lines.jsonl to speech, and two short files to held_out and presets; with
#            SECONDS, as many of the lines as it speaks in them
#   codec    train the codec as a whole for SECONDS
#   encode   encode the speech with it; afterwards its encoder must not change
#   model    train the model for SECONDS, and at the same time the decoder of the codec, or after it with one GPU
#   predict  predict the latents of the speech with the model as it is now
#   decoder  train the decoder also on these for the rest of SECONDS, which count from its beginning in `model`
#   export   write the checkpoint, and the teacher's held-out speech after the codec
#
# BUILD names the folder (build/voice), STYLES the teacher's voices (kokoro-js/voices), and PART the seconds after which a
# training ends, to go on in a later call.
set -euo pipefail
step=${1:?a step: teach, codec, encode, model, predict, decoder or export} seconds=${2:-0}
build=${BUILD:-build/voice} styles=${STYLES:-kokoro-js/voices}
gpus=$(python3 -c 'import torch; print(torch.cuda.device_count())')
export PYTHONUNBUFFERED=1
recipe() { python3 -m "tools.voice.$1" "${@:2}"; }
on() { CUDA_VISIBLE_DEVICES=$1 recipe "${@:2}"; } # on one GPU, by its number
part=(${PART:+--part "$PART"}) until=()
last=$((gpus > 0 ? gpus - 1 : 0))
shared() { # on every GPU, each with a share
  local share job jobs=()
  for share in $(seq 1 "$((last + 1))"); do
    on "$((share - 1))" "$@" --share "$share/$((last + 1))" &
    jobs+=($!)
  done
  for job in "${jobs[@]}"; do wait "$job"; done
}
decode() { # train the decoder: on which GPU, and more flags
  on "$1" train_vae "$build/speech" "$build/codec" --seconds "$seconds" "${part[@]}" \
    --start "$build/encoder" --alone 0.03 --crop 0.4 "${@:2}"
}

case $step in
  teach)
    ((seconds == 0)) || until=(--until "$(($(date +%s) + seconds))")
    shared speak "$build/lines.jsonl" "$build/speech" --styles "$styles" "${until[@]}"
    for name in held_out presets; do recipe speak "$build/$name.jsonl" "$build/$name" --styles "$styles"; done
    ;;
  codec)
    if test -e "$build/latents/index.npz"; then
      echo "the speech is encoded with this codec; remove $build/latents to train it on" >&2
      exit 1
    fi
    on 0 train_vae "$build/speech" "$build/encoder" --seconds "$seconds" "${part[@]}" --alone 1 --crop 0.52
    ;;
  encode)
    test -e "$build/latents/index.npz" || on 0 encode "$build/speech" "$build/encoder" "$build/latents"
    ;;
  model)
    on 0 train_model "$build/latents" "$build/model" --seconds "$seconds" "${part[@]}" & model=$!
    ((gpus < 2)) || decode "$last" --batch 16
    wait "$model"
    ((gpus > 1)) || decode "$last" --batch 16
    ;;
  predict)
    shared predict "$build/latents" "$build/model" "$build/predicted"
    ;;
  decoder)
    decode 0 --batch 20 --predicted "$build/predicted" --latents "$build/latents"
    ;;
  export)
    recipe export "$build/codec" "$build/model" "$build/checkpoint"
    recipe ceiling "$build/held_out" "$build/checkpoint" "$build/said"
    ;;
  *)
    echo "unknown step $step; the steps are teach, codec, encode, model, predict, decoder and export" >&2
    exit 2
    ;;
esac
