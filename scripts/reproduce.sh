#!/usr/bin/env bash
# The whole experiment: three training seeds with curves over the rollouts, and a base with even habits; then the tables.
# Every run goes on where it was stopped; call it again after a Ctrl-C or a power cut.
set -euo pipefail
cd "$(dirname "$0")/.."
TRACE=target/release/trace
SEEDS=${SEEDS:-1 2 3}
SHARES=${SHARES:-0.25 0.5 0.75}
EVEN_SEEDS=${EVEN_SEEDS:-1}
JOBS=${JOBS:-2}

commands() {
    for seed in $SEEDS; do
        echo "configs/reproduce.toml --set run.seed=$seed --set run.name=reproduce-$seed"
    done
    for share in $SHARES; do
        for seed in $SEEDS; do
            echo "configs/reproduce-curve.toml --set run.seed=$seed --set run.share=$share --set run.name=reproduce-$seed-$share"
        done
    done
    for seed in $EVEN_SEEDS; do
        echo "configs/reproduce-curve.toml --set run.seed=$seed --set policy.model=data/even --set run.name=reproduce-$seed-even"
    done
}

mkdir -p runs
# One line per run; what each prints is in runs/NAME.log.
commands | xargs -P "$JOBS" -I{} bash -c '
    line="{}"; name=${line##*run.name=}
    echo "$name: started, see runs/$name.log"
    if '"$TRACE"' run $line > "runs/$name.log" 2>&1; then echo "$name: done"; else echo "$name: FAILED, see runs/$name.log"; exit 1; fi
' && failed=0 || failed=1
"$TRACE" compare runs/reproduce-*/ | tee runs/reproduce.md
if [ "$failed" = 1 ]; then
    echo "some runs are not done; the tables name them, and the same call goes on with them" >&2
    exit 1
fi
