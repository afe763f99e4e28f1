# bash completion for ralph: eval "$(ralph completion bash)" in ~/.bashrc
_ralph() {
    local line kind=''
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ -z $kind ]]; then
            kind=$line
        else
            COMPREPLY+=("$line")
        fi
    done < <(command ralph --complete bash "${COMP_LINE:0:COMP_POINT}" "$2" </dev/null 2>/dev/null)
    # Names of files are bash's own business. It takes them where COMPREPLY is empty.
    case $kind in
        files) compopt -o default ;;
        directories) compopt +o default -o dirnames ;;
        *) compopt +o default ;;
    esac 2>/dev/null
    return 0
}
complete -o default -o nosort -F _ralph ralph 2>/dev/null || complete -o default -F _ralph ralph
