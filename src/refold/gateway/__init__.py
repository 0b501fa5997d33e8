"""The gateway: an HTTP server between clients and providers that speaks the providers' own formats.

A client changes its base URL and nothing more. Every request carries its whole history, so the gateway
recognises the conversation by hashes of its messages, adds the new ones, and sends the client's own bytes or
the window made from them. The provider's answer is passed on as it arrives, read on the way, and stored with
the record of the call.

    client → auth → request → recognition → conversations → request_edits → exchange → upstream
                                                    store ← backlog ← response_tap ← exchange ←

`upstreams` chooses the provider key of a call; `provider_state` decides which owner may use an id that a
provider stores. A failure inside the gateway never stops a request: it is then sent on unchanged.
"""
