-- Was a key ever made, for any owner?
SELECT EXISTS (SELECT 1 FROM api_key)
