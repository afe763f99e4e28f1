#compdef ralph
# zsh completion for ralph: source <(ralph completion zsh) in ~/.zshrc, or this file as _ralph in a directory of $fpath
_ralph() {
    local line kind
    local -a answer values shown
    answer=("${(@f)$(command ralph --complete zsh "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" </dev/null 2>/dev/null)}")
    kind=$answer[1]
    for line in "${(@)answer[2,-1]}"; do
        values+=("${line%%$'\t'*}")
        line=${line/$'\t'/  -- }
        shown+=("${line%  -- }")
    done
    [[ $PREFIX == --*=* ]] && compset -P 1 '*='
    (( $#values )) && compadd -l -V ralph -d shown -a values
    case $kind in
        files) _files ;;
        directories) _files -/ ;;
    esac
}
if [[ $funcstack[1] == _ralph ]]; then
    _ralph "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
    compdef _ralph ralph
fi
