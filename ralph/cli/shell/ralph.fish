# fish completion for ralph: ralph completion fish | source in ~/.config/fish/config.fish
function __ralph_complete
    set -l words (commandline -opc)
    set -e words[1]
    set -l current (commandline -ct)
    set -l answer (command ralph --complete fish $words "$current" </dev/null 2>/dev/null)
    set -l kind $answer[1]
    set -e answer[1]
    test (count $answer) -gt 0; and printf '%s\n' $answer
    set -l option (string match -r -- '^--[^=]*=' "$current")
    set -l typed (string replace -r -- '^--[^=]*=' '' "$current")
    switch "$kind"
        case files
            for path in (__fish_complete_path "$typed")
                printf '%s\n' "$option$path"
            end
        case directories
            for path in (__fish_complete_directories "$typed" '')
                printf '%s\n' "$option$path"
            end
    end
end
complete -c ralph -e
complete -c ralph -f -k -a '(__ralph_complete)'
