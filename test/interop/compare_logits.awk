# compare_logits.awk - reads "ours" and "theirs", one row of logits a line each, as pasted pairs: awk -f compare_logits.awk OURS THEIRS
# Prints the largest difference; exits 1 when it is over 1e-4, when the shapes differ or when the logits are all alike.
FNR == NR { ours[FNR] = $0; rows = FNR; next }
{
    count = split(ours[FNR], a, " ")
    if (count != NF || count < 2) bad = "row " FNR " has " count " and " NF " numbers"
    for (i = 1; i <= NF; i++) {
        d = a[i] - $i; if (d < 0) d = -d
        if (!(d <= 1e30)) bad = "row " FNR " is not finite"
        if (d > worst) worst = d
        if (a[i] > high || !seen) high = a[i]
        if (a[i] < low || !seen++) low = a[i]
    }
    theirs = FNR
}
END {
    if (rows != theirs || rows == 0) bad = rows " rows and " theirs
    if (high - low < 1e-3) bad = "the logits span only " high - low
    printf "%d rows, largest difference %.3g, logits from %.3g to %.3g %s\n", rows, worst, low, high, bad
    exit bad != "" || worst > 1e-4
}
