"""Tokens as botocore makes them: cases as JSON on the standard input, tokens as JSON on the standard output."""

import datetime
import json
import sys

import botocore.auth
import botocore.session

clock = None
botocore.auth.get_current_datetime = lambda remove_tzinfo=True: clock.replace(tzinfo=None) if remove_tzinfo else clock


def client(key, secret, session_token):
    session = botocore.session.Session()
    return session.create_client(
        "dsql",
        region_name="us-west-1",  # each case has its own
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        aws_session_token=session_token,
    )


clients = {}
tokens = []
for case in json.load(sys.stdin):
    clock = datetime.datetime.fromtimestamp(case["time"], datetime.timezone.utc)
    credentials = (case["key"], case["secret"], case["session_token"])
    if credentials not in clients:
        clients[credentials] = client(*credentials)
    made_by = clients[credentials]
    make = made_by.generate_db_connect_admin_auth_token if case["admin"] else made_by.generate_db_connect_auth_token
    tokens.append(make(Hostname=case["host"], Region=case["region"], ExpiresIn=case["expires"]))
json.dump(tokens, sys.stdout)
