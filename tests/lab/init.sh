#!/bin/busybox sh
# First process of the guest: lays a throw-away overlay over the host's file system, which it
# sees read-only, runs /job/command there, leaves its output in /job, and switches off.
bb=/bin/busybox
$bb mount -t proc proc /proc
$bb mount -t sysfs sysfs /sys
$bb mount -t devtmpfs dev /dev
while read -r module; do $bb insmod "/modules/$module.ko"; done < /modules/order

share=trans=virtio,version=9p2000.L,msize=512000
$bb mount -t 9p -o "$share,ro,cache=loose" host /host || $bb poweroff -f
$bb mount -t 9p -o "$share" job /job || $bb poweroff -f
$bb mount -t tmpfs tmpfs /changes
$bb mkdir /changes/upper /changes/work
$bb mount -t overlay -o lowerdir=/host,upperdir=/changes/upper,workdir=/changes/work overlay /guest

for folder in proc sys dev; do $bb mount --bind "/$folder" "/guest/$folder"; done
$bb mkdir -p /guest/dev/shm /guest/job
$bb mount -t tmpfs tmpfs /guest/dev/shm
$bb mount --bind /job /guest/job
$bb mount -t cgroup2 cgroup2 /guest/sys/fs/cgroup
echo '127.0.0.1 lab' >> /guest/etc/hosts
$bb hostname lab
$bb ifconfig lo 127.0.0.1 up

group=/guest/sys/fs/cgroup/job
$bb mkdir "$group"
echo '+cpuset' > /guest/sys/fs/cgroup/cgroup.subtree_control
for setting in /job/cpuset.*; do
    if [ -e "$setting" ]; then $bb cat "$setting" > "$group/${setting##*/}"; fi
done

# No exit code in /job means that the time was up. The limit is kept in here, so that the
# guest stops even when nobody is left on the host to stop it.
read -r limit < /job/limit
$bb timeout -s KILL "$limit" $bb sh -c "
    echo \$\$ > $group/cgroup.procs
    $bb chroot /guest /bin/bash /job/command
    echo \$? > /job/exit
" > /job/stdout 2> /job/stderr < /dev/null
$bb sync
$bb poweroff -f
