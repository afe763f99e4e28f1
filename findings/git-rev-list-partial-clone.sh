#!/bin/sh
# Package: git 2.39.5 (Debian 12: 1:2.39.5-0+deb12u3).
#
# One would expect: `git rev-list --objects --all` only lists names of objects, and `git rev-list --disk-usage
# --objects --all` only adds up sizes of what is here, so in a partial clone (`git clone --filter=blob:none`) both
# answer without the network, or stop: the manual says that by default (--missing=error) rev-list stops with an error
# at a missing object.
# What it does: it fetches every blob of the whole history from the server, one connection for each blob, one after
# the other, and leaves a packfile for each. --missing=error, written out, does the same. The question "how big is
# this clone?" turns the partial clone into a full one, and the answer is the size afterwards. --missing=print or a
# --filter answers at once.
#
# Seen (25 blobs in the history):
#   --count --all                        0 fetches
#   --objects --all                     25 fetches, 26 packfiles
#   --objects --all --missing=error     25 fetches, 26 packfiles
#   --disk-usage --objects --all        25 fetches, 26 packfiles
#   --objects --all --missing=print      0 fetches
#   fsck, gc                             0 fetches
#   with the server gone: exit 128, a list that ends in the middle
#
# For whom it matters: agents and jobs get partial clones because the repository is large; a size check, a list of
# "all files ever" or a search for large blobs then asks the server once for each blob of the history, and says
# nothing.
#
# Exit: 0 as described, 1 it changed, 77 another git.
set -u
{ command -v git >/dev/null && [ "$(git --version)" = "git version 2.39.5" ]; } || { echo "needs git 2.39.5"; exit 77; }
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
cd "$top" || exit 1
export HOME="$top" GIT_CONFIG_NOSYSTEM=1
git config --global user.name a
git config --global user.email a@example.com
bad=0
expect() { # LABEL WANTED GOT
    printf '%-42s %s\n' "$1" "$3"
    [ "$2" = "$3" ] || { echo "CHANGED: wanted $2"; bad=1; }
}

git init -q -b main server
git -C server config uploadpack.allowFilter true
git -C server config uploadpack.allowAnySHA1InWant true
for commit in 1 2 3 4 5; do
    for name in a b c d e; do echo "$name, version $commit" >"server/$name"; done
    git -C server add .
    git -C server commit -qm "version $commit"
done

clone() { rm -rf clone; git clone -q --no-checkout --filter=blob:none "file://$top/server" clone; }
fetches() { # ARGUMENTS OF GIT: runs it in a fresh partial clone, prints "FETCHES PACKFILES"
    clone
    GIT_TRACE="$top/trace" git -C clone "$@" >out 2>&1 || echo "exit not 0"
    echo "$(grep -c 'run_command:.*git-upload-pack' trace) $(find clone/.git/objects/pack -name '*.pack' | wc -l)"
    rm -f trace
}

expect "commits alone" "0 1" "$(fetches rev-list --count --all)"
expect "--objects" "25 26" "$(fetches rev-list --objects --all)"
expect "--objects --missing=error" "25 26" "$(fetches rev-list --objects --all --missing=error)"
expect "--count --objects" "25 26" "$(fetches rev-list --count --objects --all)"
expect "--disk-usage --objects" "25 26" "$(fetches rev-list --disk-usage --objects --all)"
expect "--objects --missing=print" "0 1" "$(fetches rev-list --objects --all --missing=print)"
expect "--objects --filter=blob:none" "0 1" "$(fetches rev-list --objects --all --filter=blob:none)"
expect "fsck" "0 1" "$(fetches fsck)"
expect "gc" "0 1" "$(fetches gc -q)"

clone
mv server away
lines=$(git -C clone rev-list --objects --all 2>error | wc -l)
git -C clone rev-list --objects --all >/dev/null 2>error
expect "the server is gone: exit code" 128 $?
expect "... names listed, of 35" yes "$([ "$lines" -gt 0 ] && [ "$lines" -lt 35 ] && echo yes || echo "$lines")"
grep -q 'could not fetch' error || { echo "CHANGED: $(cat error)"; bad=1; }
[ $bad = 0 ] && echo "as described: listing names fetched every blob, one by one"
exit $bad
