#!/bin/bash
# Hosts a, b, … with an SSH server each, in network namespaces on one bridge; everything is in namespaces of this
# process and goes with it. Lines of standard input are run as commands; after each comes its status.
#   unshare --mount --net --pid --uts --fork --kill-child --mount-proc bash lab.sh FOLDER HOSTS
set -u
lab=$1 n=$2
PATH=$PATH:/usr/sbin:/sbin
fail() { echo "failed: $*"; exit 1; }
mount -t tmpfs tmpfs /run 2>/dev/null || fail "no mounts"
mkdir -p /run/netns /run/sshd
ip link set lo up && hostname here && ip link add br0 type bridge && ip link set br0 up || fail "no namespaces"
ip addr add 10.78.0.1/24 dev br0
ip addr add fd78::1/64 dev br0 nodad 2>/dev/null
echo "127.0.0.1 localhost" > "$lab/hosts"
echo "10.78.0.1 here" >> "$lab/hosts"

ssh-keygen -q -t ed25519 -N '' -f "$lab/key" || fail "no keys"
cp "$lab/key.pub" "$lab/authorized"
cat > "$lab/sshd_config" <<C
HostKey $lab/key
AuthorizedKeysFile $lab/authorized
StrictModes no
UsePAM no
PidFile none
PermitRootLogin yes
PasswordAuthentication no
MaxStartups 100
C
cat > "$lab/ssh_config" <<C
IdentityFile $lab/key
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
LogLevel ERROR
ConnectTimeout 10
C
for i in $(seq 1 "$n"); do
  name=$(printf "\\$(printf '%03o' $((96 + i)))")
  ip netns add "$name" || fail "no network namespaces"
  ip link add "v$name" type veth peer name eth0 netns "$name"
  ip link set "v$name" master br0 up
  ip -n "$name" addr add "10.78.0.$((10 + i))/24" dev eth0
  ip -n "$name" addr add "fd78::$((10 + i))/64" dev eth0 nodad 2>/dev/null
  ip -n "$name" link set eth0 up
  ip -n "$name" link set lo up
  echo "10.78.0.$((10 + i)) $name" >> "$lab/hosts"
  echo "fd78::$((10 + i)) ${name}6" >> "$lab/hosts"
done
mount --bind "$lab/hosts" /etc/hosts || fail "no bind mounts"
# Names that are not there are not asked for elsewhere.
: > "$lab/resolv" && mount --bind "$lab/resolv" /etc/resolv.conf 2>/dev/null
for name in $(ip netns list | cut -d' ' -f1); do
  ip netns exec "$name" "$(command -v sshd)" -f "$lab/sshd_config" -E "$lab/sshd.log" || fail "sshd $name"
done
ssh="ssh -F $lab/ssh_config"
for name in $(ip netns list | cut -d' ' -f1); do
  until $ssh -n "$name" true 2>/dev/null; do
    [ "$SECONDS" -lt 30 ] || fail "ssh $name: $(tail -n 2 "$lab/sshd.log")"
    sleep 0.1
  done
done
echo ready
while IFS= read -r line; do
  eval "$line" < /dev/null 2>&1
  echo "=== $?"
done
