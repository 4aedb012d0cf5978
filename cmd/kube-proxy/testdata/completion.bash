# What a TAB at the end of a line offers; $1 is a folder of manifests. The words are those of bash, which breaks them at "=" and ":" too.
if ! source /usr/share/bash-completion/bash_completion 2>/dev/null; then
	_get_comp_words_by_ref() { # -n =: cur prev words cword: joins what bash broke at = and :
		words=() cword=0
		local word joined=""
		for word in "${COMP_WORDS[@]}"; do
			if ((${#words[@]})) && { [[ $word == [=:] ]] || [[ $joined && $word ]]; }; then
				words[-1]+=$word
				[[ $word == [=:] ]] && joined=1 || joined=""
			else
				[[ $joined && ! $word ]] || words+=("$word")
				joined=""
			fi
		done
		cword=$((${#words[@]} - 1))
		cur=${words[cword]} prev=${words[cword - 1]}
	}
	__ltrim_colon_completions() {
		[[ $1 == *:* ]] || return 0
		local i
		for i in "${!COMPREPLY[@]}"; do COMPREPLY[i]=${COMPREPLY[i]#"${1%"${1##*:}"}"}; done
	}
fi
source <(kube-proxy completion bash)
compopt() { :; } # there is no completion that it could speak of

tab() {
	local line=$1 word split
	split=${line//=/ = } split=${split//:/ : }
	COMP_LINE=$line COMP_POINT=${#line} COMP_TYPE=9 COMP_KEY=9 COMP_WORDS=() COMPREPLY=()
	for word in $split; do COMP_WORDS+=("$word"); done
	[[ $line == *[=:\ ] ]] && COMP_WORDS+=("")
	COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
	local function
	function=$(complete -p kube-proxy)
	function=${function##*-F } function=${function%% *}
	"$function" kube-proxy "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
	local offered=("${COMPREPLY[@]%% *}")
	echo "$line|$(((${#offered[@]})) && printf ' %s' "${offered[@]}" | tr '\n' ' ')"
}
tab "kube-proxy tr"
tab "kube-proxy no"
tab "kube-proxy why --manifests $1 shop/w"
tab "kube-proxy why --manifests=$1 shop/w"
tab "kube-proxy why --manifests $1 we"
tab "kube-proxy why --manifests $1 shop/web:"
tab "kube-proxy trace --manifests $1 node shop/t"
tab "kube-proxy trace --manifests $1 n"
tab "kube-proxy top -o "
tab "kube-proxy migrate --to=ip"
