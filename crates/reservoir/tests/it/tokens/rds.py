"""Tokens as botocore makes them: cases as JSON on the standard input, tokens as JSON on the standard output."""

import datetime
import json
import sys

import botocore.auth
import botocore.session

clock = None
botocore.auth.get_current_datetime = lambda remove_tzinfo=True: clock.replace(tzinfo=None) if remove_tzinfo else clock

tokens = []
clients = {}
for case in json.load(sys.stdin):
    clock = datetime.datetime.fromtimestamp(case["time"], datetime.timezone.utc)
    if case["session_token"] not in clients:
        clients[case["session_token"]] = botocore.session.Session().create_client(
            "rds",
            region_name="us-west-1",  # each case has its own
            aws_access_key_id=case["key"],
            aws_secret_access_key=case["secret"],
            aws_session_token=case["session_token"],
        )
    client = clients[case["session_token"]]
    tokens.append(client.generate_db_auth_token(case["host"], case["port"], case["user"], Region=case["region"]))
json.dump(tokens, sys.stdout)
