#!/bin/bash
# Hosts h1, h2, … in network namespaces, the first of them on one bridge and the others on a second one; `ip link set
# trunk0 down` parts the two. Everything is in namespaces of this process and goes with it. Lines of standard input are
# run as commands; after each comes its status.
#   unshare --mount --net --pid --uts --fork --kill-child --mount-proc bash lab.sh FOLDER HOSTS ON_THE_FIRST
set -u
lab=$1 n=$2 first=$3
PATH=$PATH:/usr/sbin:/sbin
fail() { echo "failed: $*"; exit 1; }
mount -t tmpfs tmpfs /run 2>/dev/null || fail "no mounts"
mkdir -p /run/netns
ip link set lo up || fail "no namespaces"
for side in 0 1; do
  ip link add "br$side" type bridge && ip link set "br$side" up || fail "no bridges"
done
ip link add trunk0 type veth peer name trunk1 || fail "no pairs"
for side in 0 1; do ip link set "trunk$side" master "br$side" up; done
for i in $(seq 1 "$n"); do
  side=$((i > first))
  ip netns add "h$i" || fail "no network namespaces"
  ip link add "v$i" type veth peer name eth0 netns "h$i" || fail "no pairs"
  ip link set "v$i" master "br$side" up
  ip -n "h$i" addr add "10.79.0.$((10 + i))/24" dev eth0
  ip -n "h$i" link set eth0 up
  ip -n "h$i" link set lo up
done
declare -A pids
echo ready
while IFS= read -r line; do
  eval "$line" < /dev/null 2>&1
  echo "=== $?"
done
