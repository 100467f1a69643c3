"""What every role did and where its seconds went: ledger, account, logs, progress, profile.
Takes marks, metrics and episodes from all roles; gives files, the progress line and the account."""
