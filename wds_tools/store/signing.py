"""How S3 lets a store in: requests signed by botocore, with credentials from its usual chain.

The chain is asked when the first request is signed, anew in each process, and nothing of it is ever pickled. A refusal
is answered once: with credentials asked for anew, or for the region that the server names. Where there are no credentials
requests go unsigned, as public buckets take them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

from wds_tools.errors import MissingExtraError, StoreError
from wds_tools.store.options import StoreOptions
from wds_tools.store.wire import Refusal, Request

_DEFAULT_REGION = "us-east-1"
_RENEWABLE = ("ExpiredToken", "TokenRefreshRequired", "InvalidToken")  # Amazon refuses these with 400
_ENDPOINT = {"endpoint_url": ("endpoint_url", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"], None, None)}


class Signer:
    """Signs the requests to one bucket. Threads share it."""

    def __init__(self, bucket: str, options: StoreOptions) -> None:
        self.bucket = bucket
        self._options = options
        self._region: str | None = None  # what a server said
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {"bucket": self.bucket, "_options": self._options, "_region": self._region}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._forget()

    def _forget(self) -> None:
        self._pid = -1
        self._lock = threading.Lock()
        self._session: Any = None
        self._credentials: Any = None

    def base(self) -> str:
        """The bucket's address: in the host's name at Amazon where that can be, in the path anywhere else."""
        endpoint = self._options.endpoint_url or self._configured("endpoint_url")
        if endpoint:
            return f"{endpoint.rstrip('/')}/{self.bucket}"
        region = self.region()
        domain = f"s3.{region}.amazonaws.com" + (".cn" if region.startswith("cn-") else "")
        # A certificate for *.s3… does not cover a name with dots, and host names know no underscore or capitals.
        plain = self.bucket.replace("-", "").isalnum() and self.bucket == self.bucket.lower()
        return f"https://{self.bucket}.{domain}" if plain else f"https://{domain}/{self.bucket}"

    def region(self) -> str:
        return self._region or self._options.region or self._configured("region") or _DEFAULT_REGION

    def sign(self, request: Request) -> tuple[str, Mapping[str, str]]:
        url = self.base() + request.target
        credentials = self._current()
        if credentials is None:
            return url, {}
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest

        signed = AWSRequest(request.method, url, dict(request.headers), request.body)
        S3SigV4Auth(credentials, "s3", self.region()).add_auth(signed)
        return url, dict(signed.headers.items())

    def renew(self, refusal: Refusal) -> bool:
        region = refusal.headers.get("x-amz-bucket-region")
        if region and region != self.region():
            self._region = region
            return True
        if (refusal.status == 403 or refusal.code in _RENEWABLE) and not self._options.anonymous:
            self._forget()
            return self._current() is not None
        return False

    def advice(self, refusal: Refusal) -> str:
        if refusal.code == "RequestTimeTooSkewed":
            return "set this machine's clock"
        if refusal.status not in (400, 401, 403):
            return "check the bucket, the region and the endpoint"
        if self._options.anonymous or self._credentials is None:
            return (
                "the request was not signed, since no credentials were asked for or found: check the AWS configuration"
            )
        return "check the credentials, and what they may do in this bucket"

    def _configured(self, name: str) -> str | None:
        found = self._loaded().get_config_variable(name)
        return str(found) if found else None

    def _current(self) -> Any:
        """Credentials that are good now, None where there are none."""
        if self._options.anonymous:
            return None
        session = self._loaded()
        from botocore.exceptions import BotoCoreError

        try:
            with self._lock:
                if self._credentials is None:
                    self._credentials = session.get_credentials()
            return None if self._credentials is None else self._credentials.get_frozen_credentials()
        except BotoCoreError as error:
            raise StoreError(f"s3://{self.bucket}: no credentials ({error}); check the AWS configuration") from None

    def _loaded(self) -> Any:
        """The session of this process: a lock that another thread holds during a fork would never open in the child."""
        try:
            from botocore.exceptions import BotoCoreError
            from botocore.session import Session
        except ImportError:
            raise MissingExtraError.of(f"s3://{self.bucket}", "botocore") from None
        if self._pid != os.getpid():
            self._forget()
            self._pid = os.getpid()
        with self._lock:
            if self._session is None:
                try:
                    session = Session(profile=self._options.profile, session_vars=_ENDPOINT)
                    session.get_scoped_config()  # a profile that does not exist is an error here
                except BotoCoreError as error:
                    raise StoreError(f"s3://{self.bucket}: {error}; check the AWS configuration") from None
                self._session = session
            return self._session
