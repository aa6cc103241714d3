#!/bin/bash
# A Slurm cluster on one machine, in namespaces of its own: it goes with this process, and nothing outside is
# changed. Lines of standard input are run as commands; after each comes its status.
#   unshare --mount --net --pid --uts --fork --kill-child --mount-proc bash lab.sh FOLDER NODES
set -u
lab=$1 n=$2
PATH=$PATH:/usr/sbin:/sbin
mkdir -p "$lab"/{state,log,run}
# Slurm looks for addresses that are not loopback ones.
ip link set lo up && hostname lab && ip link add lab0 type veth peer name lab1 && ip link set lab0 up &&
  ip link set lab1 up || { echo "failed: no namespaces"; exit 1; }
echo "127.0.0.1 localhost" > "$lab/hosts"
echo "10.77.0.1 lab" >> "$lab/hosts"
for i in $(seq 1 "$n"); do
  ip addr add "10.77.0.$i/24" dev lab0
  echo "10.77.0.$i n$i" >> "$lab/hosts"
  mkdir -p "$lab/spool/n$i"
done
mount --bind "$lab/hosts" /etc/hosts || { echo "failed: no bind mounts"; exit 1; }

dd if=/dev/urandom of="$lab/munge.key" bs=1 count=1024 status=none
chmod 400 "$lab/munge.key"
chmod 755 "$lab" "$lab/run"
munged --force --key-file="$lab/munge.key" --socket="$lab/run/munge.socket" --pid-file="$lab/run/munged.pid" \
  --log-file="$lab/log/munged.log" --seed-file="$lab/munge.seed" || { echo "failed: munged"; exit 1; }

# Requeued jobs start again after cred_expire, which is two minutes unless it is set.
cat > "$lab/slurm.conf" <<C
ClusterName=lab
SlurmctldHost=lab(10.77.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$lab/run/munge.socket,cred_expire=5
CredType=cred/munge
SlurmctldPort=17817
StateSaveLocation=$lab/state
SlurmdSpoolDir=$lab/spool/%n
SlurmctldLogFile=$lab/log/controller.log
SlurmdLogFile=$lab/log/%n.log
SlurmctldPidFile=$lab/run/controller.pid
SlurmdPidFile=$lab/run/%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,batch_sched_delay=0,defer_batch
ReturnToService=2
SlurmdTimeout=6
MpiDefault=none
KillWait=5
SlurmdParameters=config_overrides
NodeName=n[1-$n] NodeHostname=lab NodeAddr=10.77.0.[1-$n] Port=[17821-$((17820 + n))] CPUs=1 State=UNKNOWN
PartitionName=main Nodes=n[1-$n] Default=YES MaxTime=INFINITE State=UP
C
export SLURM_CONF=$lab/slurm.conf
slurmctld -f "$SLURM_CONF" || { echo "failed: slurmctld"; exit 1; }
for i in $(seq 1 "$n"); do
  slurmd -N "n$i" -f "$SLURM_CONF" || { echo "failed: slurmd n$i"; exit 1; }
done
until [ "$(timeout 5 sinfo -h -t idle -o %D 2>/dev/null)" = "$n" ] || [ "$SECONDS" -gt 40 ]; do
  sleep 0.1
done
if [ "$SECONDS" -gt 40 ]; then
  echo "failed: not all nodes came up; $(tail -n 3 "$lab"/log/*.log | tr '\n' ' ')"
  exit 1
fi

# Ends a node as a power cut does: its daemon, what it has started, and what started that.
kill_node() {
  local victims pid
  victims=$(cat "$lab/run/$1.pid")
  for pid in $(grep -lzsx "SLURMD_NODENAME=$1" /proc/[0-9]*/environ | cut -d/ -f3); do
    victims="$victims $pid $(ps -o ppid= -p "$pid")"
  done
  for pid in $victims; do
    # The script of the job runs on a node too; its parent is the daemon of the step, never this shell.
    [ "$pid" -gt 1 ] && kill -9 "$pid" 2>/dev/null
  done
  true
}

echo ready
while IFS= read -r line; do
  eval "$line" < /dev/null 2>&1
  echo "=== $?"
done
