-- Make the settings of a new connection on which the promises rest.
SELECT
    set_config('search_path', 'refold, public', false),
    set_config('default_transaction_isolation', 'read committed', false),
    set_config(
        'synchronous_commit',
        CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END,
        false
    ),
    set_config('statement_timeout', :statement_timeout, false),
    set_config('lock_timeout', :lock_timeout, false),
    set_config('idle_in_transaction_session_timeout', :idle_timeout, false)
