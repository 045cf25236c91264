"""Leases blobs in Azure Blob Storage with azure-storage-blob.

    --container URL --lock BLOB --ttl SECONDS (-1: the lease never ends)
"""

import time

from azure.core.exceptions import AzureError, HttpResponseError, ResourceExistsError
from azure.storage.blob import BlobClient

import peer

# Every emulator's account, and its key, which Azure publishes.
CREDENTIAL = {
    "account_name": "devstoreaccount1",
    "account_key": "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
}
API = "2023-11-03"  # emulators do not support the newest version


class Lock:
    def __init__(self, options):
        url = f"{options.container}/{options.lock}"
        self.blob = BlobClient.from_blob_url(url, credential=CREDENTIAL, api_version=API)
        self.ttl = options.ttl
        self.lease = None

    def acquire(self, blocking=True):
        while not self.attempt():
            if not blocking:
                return False
            time.sleep(0.05)
        return True

    def attempt(self):
        try:
            if not self.blob.exists():
                self.blob.upload_blob(b"")
        except HttpResponseError as error:
            # Another client was faster: it has created the blob (ResourceExistsError) or leased it already.
            if not isinstance(error, ResourceExistsError) and error.status_code != 412:
                raise
        try:
            self.lease = self.blob.acquire_lease(lease_duration=self.ttl)
        except HttpResponseError as error:
            if error.status_code != 409:
                raise
            return False
        return True

    def release(self):
        self.lease.release()


if __name__ == "__main__":
    peer.main(["container"], Lock, AzureError)
