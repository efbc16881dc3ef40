_npulab() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words="" kept="" one
  case "${{COMP_WORDS[1]}} $before" in
{choices}
    *) case "${{COMP_WORDS[1]}}" in
{options}
    esac ;;
  esac
  [ "$COMP_CWORD" = 1 ] && words="{commands}"
  for one in $words; do
    [[ $word = -* || $one != -* ]] && kept+=" $one"
  done
  COMPREPLY=($(compgen -W "$kept" -- "$word"))
}}
complete -o default -F _npulab npulab
