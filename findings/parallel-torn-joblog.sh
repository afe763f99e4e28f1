#!/bin/sh
# Package: GNU parallel 20221122 (Debian 12: parallel 20221122+ds-2).
#
# One would expect: if the last line of a --joblog was cut off (the disk was full, the machine lost its power),
# `parallel --resume` repeats that one job, or refuses the file; and what a resumed run has finished and written
# down, the next --resume leaves alone.
# What it does: --resume takes the cut line, even one of two characters, for a job that is done. Then it writes its
# first new line right behind the cut one, without a newline between them. That line is lost to every reader, so the
# next --resume runs a second time what had run well and was logged. --resume-failed looks at the same file in
# another way: it refuses it with 255 ("Format of ... is wrong") and runs nothing, unless the cut lies in the last
# column; then it goes on and repeats, once more at the next call, the failed job that had meanwhile run well.
#
# Seen (a b c are in the log, c with exit code 1 and its line cut; then a b c d e is resumed):
#   first  --resume ran: d e
#   second --resume ran: d        (it had run well)
#   third  --resume ran: nothing
#   --resume-failed on the cut file: exit 255, ran nothing
#   cut inside the command (the last column), --resume-failed: ran c d e, and the next time c, which had run well
#   with a newline behind the cut line: d e, then nothing
#
# For whom it matters: the joblog is the memory of a long batch ("nothing twice"), and --resume is what is called
# after a full disk or a crash. Before it, make sure that the file ends with a newline.
#
# Needs apt-get (Debian 12 package lists) and perl; nothing is installed.
# Exit: 0 as described, 1 it changed, 77 it cannot be tried here.
set -u
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
cd "$top" || exit 1
command -v perl >/dev/null || { echo "perl is missing"; exit 77; }
{ apt-get download -qq parallel=20221122+ds-2 2>/dev/null && dpkg-deb -x parallel_*.deb root; } ||
    { echo "parallel 20221122+ds-2 is not among this system's packages"; exit 77; }
export HOME="$top" PARALLEL_HOME="$top/.parallel"
mkdir .parallel
touch .parallel/will-cite
bad=0
expect() { # LABEL WANTED GOT
    printf '%-34s %s\n' "$1" "${3:-nothing}"
    [ "$2" = "$3" ] || { echo "CHANGED: wanted ${2:-nothing}"; bad=1; }
}
resume() { # LOG OPTION: which of the jobs a b c d e are run
    rm -f ran
    "$top/root/usr/bin/parallel" -j1 --joblog "$1" "$2" 'echo {} >>ran' ::: a b c d e 2>error
    code=$?
    [ ! -e ran ] || tr '\n' ' ' <ran
    [ $code = 0 ] || printf 'exit %s' $code
}

"$top/root/usr/bin/parallel" -j1 --joblog whole 'test {} != c' ::: a b c 2>/dev/null
grep -q "$(printf '\t1\t0\t')" whole || { echo "CHANGED: the failed job is not in the log"; exit 1; }

# Columns: Seq Host Starttime JobRuntime Send Receive Exitval Signal Command. The last line keeps its first one or six.
for columns in 1 6; do
    { sed '$d' whole; tail -n 1 whole | cut -f "1-$columns" | tr -d '\n'; printf '\t'; } >"cut"
    cp cut again
    echo "the last line keeps $columns columns:"
    expect "  first --resume" "d e " "$(resume cut --resume)"
    expect "  second --resume" "d " "$(resume cut --resume)"
    expect "  third --resume" "" "$(resume cut --resume)"
    expect "  --resume-failed" "exit 255" "$(resume again --resume-failed)"
    rm -f ran
    "$top/root/usr/bin/parallel" -j1 --joblog again --resume-failed 'echo {} >>ran' ::: a b c d e 2>error
    grep -q 'Format of' error || { echo "CHANGED: $(cat error)"; bad=1; }
done

echo "the last line ends inside its command:"
{ sed '$d' whole; tail -n 1 whole | tr -d '\n' | sed 's/...$//'; } >"cut"
expect "  first --resume-failed" "c d e " "$(resume cut --resume-failed)"
expect "  second --resume-failed" "c " "$(resume cut --resume-failed)"

# The control: a newline behind the cut line is all it takes for the good jobs.
{ sed '$d' whole; tail -n 1 whole | cut -f 1-6; } >mended
expect "with a newline: first --resume" "d e " "$(resume mended --resume)"
expect "with a newline: second --resume" "" "$(resume mended --resume)"
[ $bad = 0 ] && echo "as described: behind a cut line a good job runs twice"
exit $bad
