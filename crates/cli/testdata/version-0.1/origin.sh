# Usage: gen.sh BINARY OUT: writes the files of version 0.1, except coordinator*.state, which were composed in its format.
set -e
B=$1; D=$2; rm -rf $D; mkdir -p $D; cd $D
python3 - <<'P'
open("text.txt","w").write(" ".join(str(i*i%97) for i in range(900)))
P
cat > cluster.toml <<'C'
[[device]]
name = "core"
tflops = 0.001
memory_gib = 1
memory_gbyte_per_s = 1

[[level]]
name = "host"
size = 2
latency_us = 1
gbit = 100
C
export OMP_NUM_THREADS=1
N="--data text.txt --link none --report none --json --sample-bytes 0 --validation-batches 0 --steps 4"
S="--width 2 --layers 1 --heads 1 --context 8 --batch 4"
M="gpt:layers=2,width=4,heads=2,vocabulary=256,positions=8"
$B train $S $N --codec int8 --checkpoint-every 2 --checkpoint-dir checkpoints --ranks 2 > train.json
$B plan make --model $M --sequence 8 --batch 4 --cluster cluster.toml --precision single --output plan.toml > /dev/null
$B train --plan plan.toml $N --ranks 2 --checkpoint-every 2 --checkpoint-dir planned > planned.json
$B train $S $N --mode server --servers 1 --ranks 1 --optimizer adam:lr=0.01 --snapshot-dir snapshots --snapshot-every 2 --checkpoint-dir none > server.json
$B graph generate blocks --help > help.txt
$B graph generate blocks --vertices 60 --output graph.graph > /dev/null || cat help.txt
$B graph info graph.graph --json > info.json
$B graph train graph.graph --model gcn --hidden 4 --passes 2 --batch 16 --checkpoint-dir graph-checkpoints --json --ranks 1 > graph.json
rm -f help.txt
